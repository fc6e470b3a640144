"""Read the features of an entity as they are at the moment of reading."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
import redis

from tailrace.errors import FeaturesUnknown
from tailrace.features.definition import Definition, Feature, Kind
from tailrace.features.store import FeatureStore, retry_until_available
from tailrace.features.windows import Window

_COUNTS = {Kind.COUNT, Kind.DISTINCT}
_ZERO = {Kind.COUNT, Kind.DISTINCT, Kind.SUM, Kind.VELOCITY}
_stores: dict[tuple[int, str], FeatureStore] = {}


@dataclass(frozen=True, slots=True)
class FeatureValues:
    """The features of one entity at one moment."""

    values: Mapping[str, Any]
    at: datetime
    """The moment the values are for."""
    as_of: datetime | None
    """Cluster time of the newest event in them; None for an entity without events."""
    updated_at: datetime | None
    """When that event arrived in Redis."""
    freshness: float | None
    """Seconds between the event and its arrival."""
    position: str | None
    """Token of that event."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def read(client: redis.Redis, entity: object, prefix: str = "features", *, at: float | None = None) -> FeatureValues:
    """Read what the job called `prefix` knows of an entity, as of now (or of `at`, seconds since 1970).

    Windows slide while nothing happens, so what Redis holds may be out of date by the time it is read. The hash says
    until when it holds; behind that the windows are let slide first. Counts and sums of an entity without events are 0.
    """
    store = _store(client, prefix)
    moment = int((time.time() if at is None else at) * 1000)
    stored: dict[bytes, bytes] = retry_until_available(lambda: client.hgetall(f"{prefix}:{entity}:features"))  # type: ignore[arg-type,return-value]
    hash_ = {name.decode(): value.decode() for name, value in stored.items()}
    if hash_ and not _is_valid(hash_, store.definition.windows, moment):
        hash_ = store.values_at(str(entity), moment)
    return _values(hash_, store.definition, moment)


def _store(client: redis.Redis, prefix: str) -> FeatureStore:
    key = (id(client.connection_pool), prefix)
    if key not in _stores:
        form = retry_until_available(lambda: client.get(f"{prefix}:definition"))
        if form is None:
            raise FeaturesUnknown(f"no job has written features called {prefix} into this Redis")
        _stores[key] = FeatureStore(client, Definition.from_json(form))
    return _stores[key]


def _is_valid(hash_: Mapping[str, str], windows: list[Window], moment: int) -> bool:
    """Whether nothing has left or entered a window since the values were computed."""
    return float(hash_["computed_at"]) <= moment < float(hash_["valid_until"]) or all(w.is_forever for w in windows)


def _values(hash_: Mapping[str, str], definition: Definition, moment: int) -> FeatureValues:
    elapsed = (moment - float(hash_["computed_at"])) / 1000 if hash_ else 0.0
    return FeatureValues(
        values={one.name: _value(one, hash_.get(one.name, ""), elapsed) for one in definition.features},
        at=datetime.fromtimestamp(moment / 1000, UTC),
        as_of=_moment(hash_.get("as_of"), 1),
        updated_at=_moment(hash_.get("updated_at"), 1000),
        freshness=float(hash_["freshness_ms"]) / 1000 if "freshness_ms" in hash_ else None,
        position=hash_.get("position"),
    )


def _value(feature: Feature, text: str, elapsed: float) -> Any:
    if not text:
        return (0 if feature.kind in _COUNTS else 0.0) if feature.kind in _ZERO else None
    if feature.kind is Kind.LAST:
        return orjson.loads(text)
    if feature.kind in _COUNTS:
        return int(float(text))
    return float(text) + (elapsed if feature.kind is Kind.SINCE_LAST else 0.0)


def _moment(text: str | None, units: int) -> datetime | None:
    return None if text is None else datetime.fromtimestamp(float(text) / units, UTC)
