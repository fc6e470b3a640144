"""The features of an entity that somebody asks for."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus

from tailrace.dashboard.collector import Collector
from tailrace.dashboard.web.answers import EntityFeatures
from tailrace.errors import ControlRefused
from tailrace.features import read


def read_entity(collector: Collector, name: str, entity: str) -> EntityFeatures:
    """Read the features of an entity as they are now; blocks while Redis answers."""
    known = [one.name for one in collector.state.features]
    if name not in known:
        hint = f"There are {', '.join(known)}." if known else "No job has written features into this Redis yet."
        raise ControlRefused(f"no features are called {name!r}", status=HTTPStatus.NOT_FOUND, hint=hint)
    found = read(collector.redis.client(), entity, name)
    return EntityFeatures(
        name=name,
        entity=entity,
        at=found.at.timestamp(),
        values=dict(found.values),
        as_of=_seconds(found.as_of),
        updated_at=_seconds(found.updated_at),
        freshness_seconds=found.freshness,
        position=found.position,
    )


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
