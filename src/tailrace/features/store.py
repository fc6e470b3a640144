"""The features of all entities in one Redis: changes go in, in batches that may be repeated."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from tailrace.errors import FeaturesMixed, FeatureStoreUnavailable
from tailrace.features.arithmetic import parse_expression
from tailrace.features.availability import POLICY, retry_until_available, run_scripts
from tailrace.features.contribution import (
    BUCKET_OF_ONE,
    BUCKETS,
    GAMMA,
    FieldValues,
    document_id,
    entity_of,
    from_text,
    row_of,
    time_of,
    to_text,
    updated,
    values_of,
)
from tailrace.features.definition import BY_ROW, Definition, Feature, Kind
from tailrace.features.keys import KeyNames
from tailrace.features.values import default_text
from tailrace.features.windows import Window
from tailrace.fold import KIND_BEGINS
from tailrace.redis_access import RedisClient, connect, is_cluster, registered, slots_of

T = TypeVar("T")
_BEFORE_MARKS: Final = "28"
"""Sorts before the kind of every token: of a high-water mark, which what is read has, and of an event."""
_SECONDS_FOR_A_CALM_SCAN: Final = 60.0
_CALLS_PER_TRIP: Final = 20
_DOCUMENTS_PER_CALL: Final = 100
_ENTITIES_PER_CALL: Final = 25
_ROWS_PER_STEP: Final = 200
_KEEP = Path(__file__).with_name("keep.lua").read_text()
_CLAIM = Path(__file__).with_name("claim.lua").read_text()
_END = """
if ARGV[1] > (redis.call('GET', KEYS[1]) or '') then
  redis.call('SET', KEYS[1], ARGV[1])
end
"""


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one document."""

    key: str
    """Its documentKey as text."""
    version: str
    """The token of the event: the newer is the greater."""
    document: bytes | None = None
    """The document after the change."""
    update: bytes | None = None
    """Its updateDescription, where the event has no document."""
    is_delete: bool = False
    as_of: int = 0
    """Cluster time of the event, in seconds."""
    wall_ms: int | None = None
    namespace: str = ""
    """Its collection; empty is the first one of the definition."""

    @property
    def id(self) -> str:
        """What the document is called in Redis: two collections may have documents of one `_id`."""
        return document_id(self.namespace, self.key)


@dataclass(slots=True)
class Outcome:
    """What became of a batch."""

    documents: int = 0
    entities: int = 0
    stale: int = 0
    """Documents of which something newer was known."""
    unknown: int = 0
    """Updates of documents that were never seen: their effect cannot be computed."""
    untimed: int = 0
    """Documents without a time that can be read: they count in windows that hold everything, and in no other."""


class FeatureStore:
    """Applies changes. Every step is idempotent and versioned, so a batch may be applied again, whole or in part."""

    def __init__(self, client: RedisClient, definition: Definition, clock: Callable[[], float] = time.time) -> None:
        self._redis = client
        self._names = KeyNames(definition.name, is_cluster(client))
        self.definition = definition
        self._clock = clock
        self._known_paths: dict[str, list[str]] = {}
        self._keep = registered(client, _KEEP)
        self._claim = registered(client, _CLAIM)
        self._end = registered(client, _END)

    @classmethod
    def connect(cls, url: str, definition: Definition) -> FeatureStore:
        """Open a store at a Redis URL."""
        return cls(retry_until_available(lambda: connect(url)), definition)

    def begin(self) -> None:
        """Leave the definition for readers; another definition under the same name is refused."""
        name, form = self._names.definition, self.definition.to_json()

        def leave() -> bytes | None:
            self._redis.set(name, form, nx=True)
            return self._redis.get(name)  # type: ignore[return-value]

        found = retry_until_available(leave)
        if found is None or found.decode() != form:
            raise FeaturesMixed(f"the features {self.definition.name} in Redis have another definition")

    def apply(self, changes: Iterable[Change]) -> Outcome:
        """Apply changes, in any order and any number of times."""
        outcome = Outcome()
        newest = self._folded(self._living(changes, outcome), outcome)
        ops: dict[str, list[_Op]] = defaultdict(list)
        for state, before in zip(newest, self._claimed(newest), strict=True):
            if before is None:
                outcome.stale += 1
                continue
            for entity in before:
                ops[entity].append(_Op(state, ""))
            if state.entity is not None:
                assert state.values is not None
                source = self.definition.source_of(state.change.namespace)
                outcome.untimed += time_of(state.values.get(source.time)) is None
                ops[state.entity].append(_Op(state, row_of(self.definition, source, state.values, state.version)))
        self._kept(ops)
        outcome.documents, outcome.entities = len(newest), len(ops)
        return outcome

    def end_before(self, version: str, as_of: int, namespace: str = "") -> None:
        """Take away what documents of a collection contributed before a version: it ended then.

        The version is kept: what comes of that collection later, from another partition, changes nothing any more.
        """
        retry_until_available(lambda: self._end(keys=[self._names.ended(namespace)], args=[version]))
        self.forget_before(version, as_of, namespace)

    def forget_before(self, version: str, as_of: int = 0, namespace: str | None = None) -> None:
        """Take away what documents contributed up to a version; those of one collection, or of all."""
        keys = [self._names.document_id(key) for key in self._document_keys()]
        for some in _pieces(keys, _CALLS_PER_TRIP * _DOCUMENTS_PER_CALL):
            known = self._known(some)
            there = [_split(key) for key, one in known.items() if one.values is not None and one.version < version]
            self.apply(
                [
                    Change(key, version, is_delete=True, as_of=as_of, namespace=its)
                    for its, key in there
                    if namespace is None or its == namespace
                ]
            )

    def _document_keys(self) -> list[str]:
        """Give the keys of all documents. While slots move between servers a scan can miss some, so it is repeated."""
        pattern = f"{_escaped(self.definition.name)}#doc:*"
        deadline = time.monotonic() + _SECONDS_FOR_A_CALM_SCAN
        while True:
            before = retry_until_available(lambda: slots_of(self._redis))
            found = retry_until_available(lambda: set(self._redis.scan_iter(match=pattern, count=1_000)))
            if before is not None and retry_until_available(lambda: slots_of(self._redis)) == before:
                return [key.decode() for key in found]
            if time.monotonic() > deadline:
                raise FeatureStoreUnavailable(
                    "slots of the Redis Cluster keep moving, so its documents cannot be listed",
                    hint="Start again when the resharding has ended.",
                )
            time.sleep(POLICY.longest)

    # --- one batch

    def _living(self, changes: Iterable[Change], outcome: Outcome) -> Iterator[Change]:
        """Leave out what happened to documents of a collection that has ended since."""
        names = ["", *(source.namespace for source in self.definition.others)]
        found = self._mget([self._names.ended(name) for name in names])
        ended = {name: (version or b"").decode() for name, version in zip(names, found, strict=True)}
        for change in changes:
            if change.version < ended[change.namespace]:
                outcome.stale += 1
            else:
                yield change

    def _folded(self, changes: Iterable[Change], outcome: Outcome) -> list[_State]:
        """Give the newest state of each document in the batch; updates without a document continue what is known."""
        by_key: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            by_key[change.id].append(change)
        for key in by_key:
            by_key[key].sort(key=lambda change: change.version)
        known = self._known([key for key, some in by_key.items() if some[0].update is not None])
        states = []
        for key, some in by_key.items():
            state = self._fold(some, known.get(key), outcome)
            if state is not None:
                states.append(state)
        return states

    def _fold(self, changes: Sequence[Change], known: _Known | None, outcome: Outcome) -> _State | None:
        values = known.values if known else None
        is_known = known is not None
        last: Change | None = None
        for change in changes:
            if change.update is not None and known is not None and change.version <= known.version:
                continue
            if change.document is not None:
                values, is_known = values_of(self._paths(change.namespace), change.document), True
            elif change.is_delete:
                values, is_known = None, True
            elif change.update is not None and values is not None:
                after = updated(values, change.update, self._paths(change.namespace))
                if after is None:
                    outcome.unknown += 1
                    continue
                values = after
            elif not is_known:
                outcome.unknown += 1
                continue
            last = change
        if last is None:
            return None
        source = self.definition.source_of(last.namespace)
        return _State(last, values, None if values is None else entity_of(source, values))

    def _paths(self, namespace: str) -> list[str]:
        """Give the fields that are looked at in the documents of a collection."""
        if namespace not in self._known_paths:
            self._known_paths[namespace] = self.definition.paths(self.definition.source_of(namespace))
        return self._known_paths[namespace]

    def _known(self, keys: Sequence[str]) -> dict[str, _Known]:
        if not keys:
            return {}
        found = self._mget([self._names.document(key) for key in keys])
        return {key: _Known.parse(text) for key, text in zip(keys, found, strict=True) if text is not None}

    def _mget(self, keys: Sequence[str]) -> list[bytes | None]:
        mget: Any = self._redis.mget_nonatomic if self._names.is_cluster else self._redis.mget  # type: ignore[union-attr]
        return retry_until_available(lambda: mget(keys))

    def _claimed(self, states: Sequence[_State]) -> Iterator[list[str] | None]:
        """Give the entities each document belonged to before, or None when something newer is known of it."""
        lifetime = str(self.definition.lifetime_ms or "")
        calls = [
            (
                [self._names.document(state.key) for state in some],
                [lifetime, *chain.from_iterable(state.claim for state in some)],
            )
            for some in _pieces(states, 1 if self._names.is_cluster else _DOCUMENTS_PER_CALL)
        ]
        for some_calls in _pieces(calls, _CALLS_PER_TRIP):
            for answers in run_scripts(self._redis, self._claim, some_calls):
                for answer in answers:
                    yield None if answer is None else [name.decode() for name in answer]

    def _kept(self, ops: Mapping[str, list[_Op]]) -> None:
        at = self._now()
        shared = self._shared(at)
        steps = [
            (self._names.entity(entity), _script_argument(piece, at))
            for entity, some in ops.items()
            for piece in _pieces(some, _ROWS_PER_STEP)
        ]
        calls = [
            (self._script_keys([base for base, _ in some]), [*shared, *(argument for _, argument in some)])
            for some in _pieces(steps, 1 if self._names.is_cluster else _ENTITIES_PER_CALL)
        ]
        for piece in _pieces(calls, _CALLS_PER_TRIP):
            run_scripts(self._redis, self._keep, piece)

    def _script_keys(self, bases: list[str]) -> list[str]:
        """Name the keys of a step of `keep.lua`.

        In a cluster a second one is named. While the slot of an entity moves, some of its keys are on one server and
        some on the other, and a script would take those it does not see for missing. A script that names two keys,
        one of which is never there, gets TRYAGAIN until the slot has arrived.
        """
        return [*bases, f"{bases[0]}:rows"] if self._names.is_cluster else bases

    # --- the arguments of the scripts

    @cached_property
    def _features(self) -> str:
        return orjson.dumps(
            [
                {
                    "name": one.name,
                    "kind": one.kind.value,
                    "window": one.window.name,
                    "source": one.source,
                    **_script_options(one),
                }
                for one in self.definition.features
            ]
        ).decode()

    def _shared(self, at: int) -> list[str]:
        """Give the arguments of a script that are the same for all its entities."""
        reach, lifetime = self.definition.reach_ms, self.definition.lifetime_ms
        shared = {
            "at": at,
            "lateness": self.definition.lateness_ms,
            "conditions": list(self.definition.conditions),
            "windows": [self._window(window, at) for window in self.definition.windows],
            **({"horizon": at - reach} if reach is not None else {}),
            **({"lifetime": lifetime} if lifetime is not None else {}),
        }
        return [orjson.dumps(shared).decode(), self._features]

    def _window(self, window: Window, at: int) -> dict[str, Any]:
        span = window.span(at)
        return {
            "name": window.name,
            "lower": span.lower,
            "upper": span.upper,
            "sums": self.definition.values_of(window, {Kind.SUM, Kind.MEAN, Kind.STDDEV}),
            "squares": self.definition.values_of(window, {Kind.STDDEV}),
            "orders": self.definition.values_of(window, {Kind.MIN, Kind.MAX}),
            "distinct": self.definition.values_of(window, {Kind.DISTINCT, Kind.PERCENTILE}),
            **({"length": window.length} if window.length is not None else {}),
            **({"until": span.until} if span.until is not None else {}),
        }

    def _now(self) -> int:
        return int(self._clock() * 1000)


class _State:
    """The newest that a batch says about one document."""

    __slots__ = ("change", "entity", "key", "values", "version")

    def __init__(self, change: Change, values: FieldValues | None, entity: str | None) -> None:
        self.change = change
        self.key = change.id
        self.version = change.version
        self.values = values
        self.entity = entity

    @property
    def claim(self) -> tuple[str, str, str]:
        """The arguments of `claim.lua` for one document."""
        return self.version, self.entity or "", "" if self.values is None else to_text(self.values)


@dataclass(frozen=True, slots=True)
class _Op:
    """A row for one entity; an empty one takes the document away."""

    state: _State
    row: str


@dataclass(frozen=True, slots=True)
class _Known:
    """What Redis knows of a document."""

    version: str
    values: FieldValues | None

    @classmethod
    def parse(cls, text: bytes) -> _Known:
        form = orjson.loads(text)
        return cls(form["v"], from_text(form["s"]) if form["s"] else None)


def version_before(token: str) -> str:
    """Give a version before everything as of the cluster time of an event, and behind all that was earlier.

    What ends a collection stands alone at its cluster time; documents that are read at that time come behind it.
    """
    return f"{token[:KIND_BEGINS]}{_BEFORE_MARKS}"


def _script_options(feature: Feature) -> dict[str, Any]:
    """Give what else a script needs of a feature, by its kind."""
    options: dict[str, Any] = {}
    if feature.condition and feature.kind in BY_ROW:
        options["condition"] = feature.condition
    if feature.approximate:
        options["buckets"] = BUCKETS
    if feature.kind is Kind.PERCENTILE:
        options |= {"q": feature.q, "gamma": GAMMA, "one": BUCKET_OF_ONE}
    if feature.n is not None:
        options["n"] = feature.n
    if feature.expression:
        options["steps"] = parse_expression(feature.expression)
    if feature.default is not None:
        options["default"] = default_text(feature)
    return options


def _split(id_: str) -> tuple[str, str]:
    """Give collection and key of a document; the key is hexadecimal."""
    namespace, _, key = id_.rpartition("/")
    return namespace.removeprefix("~"), key


def _escaped(name: str) -> str:
    """Give a pattern of Redis that matches a name and nothing else."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", name)


def _script_argument(ops: Sequence[_Op], at: int) -> str:
    """Give the arguments of a script for one entity."""
    rows = [[op.state.key, op.state.version, op.row] for op in ops]
    return orjson.dumps({"ops": rows, "news": _new_values(ops, at)}).decode()


def _new_values(ops: Sequence[_Op], at: int) -> dict[str, str]:
    """Say how new the newest of the rows is."""
    newest = max((op.state.change for op in ops), key=lambda change: change.version)
    happened = newest.wall_ms if newest.wall_ms is not None else newest.as_of * 1000
    return {
        "position": newest.version,
        "as_of": str(newest.as_of),
        "updated_at": str(at),
        "freshness_ms": str(at - happened),
    }


def _pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
