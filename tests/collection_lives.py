"""A deployment as simple as can be: collections in dictionaries, and the change events of whatever happens to them.

It is what the fold of records is held against: the events are those of real servers in shape and token, the state is
kept by doing one thing after another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import bson
from bson.timestamp import Timestamp
from hypothesis import strategies as st

from tailrace.capture.formats.made_events import recovered_delete, recovered_rename, snapshot_event
from tailrace.event import ChangeEvent
from tailrace.fold import END_OPERATIONS, Ends, end_of
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token import ResumeToken
from tailrace.token.resume_token import TokenData

NAMES = ("a.x", "a.y", "b.x")
A_LONG_TIME = 3_600_000
"""Most gaps are as long as an oplog, those that a person asks for are not; shards tell one rename within minutes."""
State = dict[str, dict[int, dict[str, Any]]]
"""The documents of each collection that has any."""
Keys = Iterable[tuple[str, bytes]]

_numbers, _ids = st.integers(0, 5), st.integers(1, 3)
_WRITES = st.tuples(st.sampled_from(("insert", "set", "replace", "delete")), _numbers, _ids)
_ENDS = st.one_of(
    st.tuples(st.just("drop"), _numbers),
    st.tuples(st.just("rename"), _numbers, _numbers, st.booleans(), st.booleans()),
    st.tuples(st.just("rename"), _numbers, _numbers, st.just(True), st.booleans()),
    st.tuples(st.just("drop_database"), _numbers, st.booleans()),
)
_READS = st.one_of(
    st.tuples(st.just("snapshot"), _numbers),
    st.tuples(st.just("lose"), st.booleans()),
    st.tuples(st.sampled_from(("resume", "recover"))),
)
_FIRST = st.permutations([("insert", number, key) for number in range(3) for key in (1, 2)])
STEPS = st.builds(
    lambda first, rest: [*first, *rest],
    _FIRST,
    st.lists(st.one_of(_WRITES, _WRITES, _ENDS, _ENDS, _READS), min_size=5, max_size=30),
)
"""What may happen, as calls of `Deployment`; a number is that of a name, or of one of the collections there are."""


def cluster_time(time: int) -> ClusterTime:
    """Give the cluster time of a time that is counted in milliseconds."""
    return ClusterTime.of(1_700_000_000 + time // 1_000, time % 1_000 + 1)


@dataclass
class Deployment:
    """Does one thing after another and keeps the events; `lose` begins a gap, `recover` closes it.

    Between `resume` and `recover` events come again, and the rows of the recovery are still missing.
    """

    captured: Callable[[list[bytes]], Keys]
    """Gives namespace and documentKey of the documents that events tell of: the inventory of a recovery."""
    collections: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    past: dict[int, State] = field(default_factory=dict)
    """The state at each cluster time at which the events so far told all of it."""
    time: int = 0
    is_lost: bool = False
    """Whether nobody sees what happens."""
    is_open: bool = False
    """Whether a gap is open: what happened in it was not read yet."""
    deletes: int = 0
    """Deletes that recoveries have sent."""
    _uuids: dict[str, bytes] = field(default_factory=dict)
    _resumed: tuple[Timestamp, dict[bytes, str]] = field(default_factory=lambda: (Timestamp(0, 0), {}))
    """When the stream began again after a gap, and which collection had which name then."""

    def run(self, steps: Iterable[tuple[Any, ...]]) -> Deployment:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)
            if not self.is_open:
                self.past[self.time] = self.state()
        self.recover()
        self.past[self.time] = self.state()
        return self

    def state(self) -> State:
        return copy.deepcopy({name: documents for name, documents in self.collections.items() if documents})

    def insert(self, number: int, key: int) -> None:
        name = NAMES[number % len(NAMES)]
        if key not in self._collection(name):
            self.collections[name][key] = document = {"_id": key, "v": self.time}
            self._tell(name, "insert", key, fullDocument=document)

    def set(self, number: int, key: int) -> None:
        name = self._one(number)
        if (document := self.collections.get(name, {}).get(key)) is not None:
            document[f"f{self.time % 3}"] = self.time
            description = {"updatedFields": {f"f{self.time % 3}": self.time}, "removedFields": []}
            self._tell(name, "update", key, updateDescription=description)

    def replace(self, number: int, key: int) -> None:
        name = self._one(number)
        if key in self.collections.get(name, {}):
            self.collections[name][key] = document = {"_id": key, "r": self.time}
            self._tell(name, "replace", key, fullDocument=document)

    def delete(self, number: int, key: int) -> None:
        name = self._one(number)
        if self.collections.get(name, {}).pop(key, None) is not None:
            self._tell(name, "delete", key)

    def drop(self, number: int) -> None:
        name = self._one(number)
        if self.collections.pop(name, None) is not None:
            self._tell(name, "drop")

    def rename(self, number: int, to_number: int, drops_target: bool, by_two_shards: bool) -> None:
        name = self._one(number)
        others = [other for other in NAMES if other != name]
        to = others[to_number % len(others)]
        if name not in self.collections or (to in self.collections and not drops_target):
            return
        self.collections[to] = self.collections.pop(name)
        new = dict(zip(("db", "coll"), to.split("."), strict=True))
        for _ in range(1 + by_two_shards):
            self._tell(name, "rename", to=new)
        self._uuids[to] = self._uuids.pop(name)

    def drop_database(self, number: int, tells_collections: bool) -> None:
        database = self._one(number)[0]
        for name in [name for name in self.collections if name.startswith(f"{database}.")]:
            del self.collections[name]
            if tells_collections:
                self._tell(name, "drop")
        self._tell(database, "dropDatabase")

    def snapshot(self, number: int) -> None:
        """Read a collection as of the newest event, or of a time at which nothing happened."""
        if not self.is_lost:
            self._read(self._one(number))

    def lose(self, is_long: bool = True) -> None:
        self.is_lost = self.is_open = True
        self.time += A_LONG_TIME if is_long else 1

    def resume(self) -> None:
        """Begin the stream again, by the names that collections have now; the documents are read later."""
        if self.is_lost:
            self.is_lost = False
            names = {uuid: name for name, uuid in self._uuids.items() if name in self.collections}
            self._resumed = cluster_time(self.time + 1).timestamp, names

    def recover(self) -> None:
        """Read everything as of now, then look for what was captured before: as a recovery does it."""
        if not self.is_open:
            return
        self.resume()
        self.is_open = False
        self._tell_unseen_renames()
        for name in sorted(self.collections):
            self._read(name)
        for name, key in list(self.captured(self.events)):
            if bson.decode(key)["_id"] not in self.collections.get(name, {}):
                self.deletes += 1
                self.events.append(recovered_delete(name, key, self._mark(), self._now()))

    def _tell_unseen_renames(self) -> None:
        resumed_at, names = self._resumed
        told = (ChangeEvent(event) for event in self.events)
        ends = Ends(end_of(event) for event in told if event.operation_type in END_OPERATIONS)
        for end in ends.unseen_renames(names, resumed_at):
            token = ResumeToken.from_hex(end.moment[1])
            self.events.append(recovered_rename(end.namespace, end.to or "", token.to_bson(), token.cluster_time))

    def _one(self, number: int) -> str:
        """Give one of the collections that there are, or else a name."""
        there = sorted(self.collections) or NAMES
        return there[number % len(there)]

    def _collection(self, name: str) -> dict[int, dict[str, Any]]:
        self._uuids.setdefault(name, b"")
        if name not in self.collections:
            self.collections[name] = {}
            self.time += 1
            self._uuids[name] = self.time.to_bytes(16, "big")
        return self.collections[name]

    def _read(self, name: str) -> None:
        for document in self.collections.get(name, {}).values():
            self.events.append(snapshot_event(name, bson.encode(document), self._mark(), self._now()))

    def _now(self) -> Timestamp:
        return cluster_time(self.time).timestamp

    def _mark(self) -> bytes:
        return ResumeToken.high_water_mark(self._now()).to_bson()

    def _tell(self, name: str, operation: str, key: int | None = None, **parts: Any) -> None:
        self.time += 1
        if self.is_lost:
            return
        database, _, collection = name.partition(".")
        document_key = None if key is None else bson.encode({"_id": key})
        uuid = self._uuids.get(name) if collection else None
        token = ResumeToken.encode(TokenData(self._now(), uuid=uuid, event_identifier=document_key)).to_document()
        event = {
            "_id": token,
            "operationType": operation,
            "clusterTime": self._now(),
            "ns": {"db": database, **({"coll": collection} if collection else {})},
            **({} if key is None else {"documentKey": {"_id": key}}),
            **parts,
        }
        self.events.append(bson.encode(event))
