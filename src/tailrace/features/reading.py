"""Read the features of an entity as they are at the moment of reading. Reading never writes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from weakref import WeakKeyDictionary

import orjson

from tailrace.errors import FeaturesUnknown
from tailrace.features.availability import retry_until_available
from tailrace.features.contribution import entity_text, text_of
from tailrace.features.definition import Definition
from tailrace.features.keys import KeyNames
from tailrace.features.values import Row, computed, typed
from tailrace.features.windows import Window
from tailrace.redis_access import RedisClient, is_cluster

_ATTEMPTS: Final = 5
"""How often a state that changes while it is read is read again."""
_definitions: WeakKeyDictionary[Any, dict[str, Definition]] = WeakKeyDictionary()


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


def read(client: RedisClient, entity: object, prefix: str = "features", *, at: float | None = None) -> FeatureValues:
    """Read what the job called `prefix` knows of an entity, as of now (or of `at`, seconds since 1970).

    The entity has its type: 5 and 5.0 are the same, "5" is another; one of several fields is a tuple. Windows slide
    while nothing happens, so what was
    published may be out of date by the time it is read. The hash says until when it holds; behind that the rows of the
    windows are added up here. Counts and sums of an entity without events are 0.
    """
    definition = _definition(client, prefix)
    moment = int((time.time() if at is None else at) * 1000)
    text = entity_text(entity) if isinstance(entity, tuple) else text_of(entity)
    base = KeyNames(prefix, is_cluster(client)).entity(text)
    hash_, slid = retry_until_available(lambda: _read(client, base, definition, moment))
    return _values(hash_, slid, definition, moment)


def read_named(client: RedisClient, name: str, prefix: str = "features") -> FeatureValues:
    """Read the features of the entity that a text names: what looks like a number is one first, and else a text."""
    typed = _typed(name)
    found = read(client, typed, prefix)
    return read(client, name, prefix) if found.as_of is None and typed != name else found


def _typed(text: str) -> object:
    try:
        found = orjson.loads(text)
    except ValueError:
        return text
    if isinstance(found, list):
        return tuple(found)
    return found if isinstance(found, int | float | str) else text


def _definition(client: RedisClient, prefix: str) -> Definition:
    known = _definitions.setdefault(client, {})
    if prefix not in known:
        form = retry_until_available(lambda: client.get(KeyNames(prefix).definition))
        if form is None:
            raise FeaturesUnknown(f"no job has written features called {prefix} into this Redis")
        known[prefix] = Definition.from_json(form)
    return known[prefix]


def _read(
    client: RedisClient, base: str, definition: Definition, moment: int
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Give the hash as it was published, and what is different at this moment because windows have slid."""
    rolling = [window for window in definition.windows if not window.is_forever]
    hash_ = _hash(client, base)
    for _ in range(_ATTEMPTS):
        if not hash_ or _is_valid(hash_, rolling, moment):
            return hash_, {}
        rows = _rows(client, base, rolling, moment)
        after = _hash(client, base)
        if _version(after) == _version(hash_):
            break
        hash_ = after
    return hash_, computed(definition, rows, moment, only_rolling=True)


def _hash(client: RedisClient, base: str) -> dict[str, str]:
    stored: dict[bytes, bytes] = client.hgetall(f"{base}:features")  # type: ignore[assignment]
    return {name.decode(): value.decode() for name, value in stored.items()}


def _version(hash_: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(hash_.get(name) for name in ("computed_at", "position"))


def _rows(client: RedisClient, base: str, windows: Sequence[Window], moment: int) -> list[Row]:
    """Give the rows that are in one of the windows, the oldest first."""
    spans = [window.span(moment) for window in windows]
    lower, upper = min(span.lower for span in spans), max(span.upper for span in spans)
    ids: list[bytes] = client.zrangebyscore(f"{base}:times", f"({lower}", upper)  # type: ignore[assignment]
    if not ids:
        return []
    found: list[bytes | None] = client.hmget(f"{base}:rows", ids)  # type: ignore[assignment]
    return [row for text in found if text is not None and "t" in (row := orjson.loads(text))]


def _is_valid(hash_: Mapping[str, str], rolling: Sequence[Window], moment: int) -> bool:
    """Whether nothing has left or entered a window since the values were computed."""
    return float(hash_["computed_at"]) <= moment < float(hash_["valid_until"]) or not rolling


def _values(hash_: Mapping[str, str], slid: Mapping[str, str], definition: Definition, moment: int) -> FeatureValues:
    elapsed = (moment - float(hash_["computed_at"])) / 1000 if hash_ else 0.0
    since = {one.name: elapsed for one in definition.features if one.name in hash_ and one.name not in slid}
    return FeatureValues(
        values=typed(definition, {**hash_, **slid}, since),
        at=datetime.fromtimestamp(moment / 1000, UTC),
        as_of=_moment(hash_.get("as_of"), 1),
        updated_at=_moment(hash_.get("updated_at"), 1000),
        freshness=float(hash_["freshness_ms"]) / 1000 if "freshness_ms" in hash_ else None,
        position=hash_.get("position"),
    )


def _moment(text: str | None, units: int) -> datetime | None:
    return None if text is None else datetime.fromtimestamp(float(text) / units, UTC)
