"""Models of what capture talks to: each may do everything that its contract allows, and fail at every call.

Mongod      oplogs of one or two shards, cursors that give as much as they like, history that is cut off, snapshots
            as of a time; behind two shards the merge of `tailrace.cluster` stands, as it does in a mongos
CellTable   the cells of a position store: compare-and-set, answers that are lost, a clock or none, late reads
Broker      one topic: records arrive in order, late, acknowledged or not, or are given up with all behind them
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import bson
import orjson
from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from simulation.scheduler import Process, Scheduler
from tailrace.capture.formats import recovered_delete, snapshot_event
from tailrace.capture.record import Record
from tailrace.capture.recovery.topic_reader import TopicMessage
from tailrace.capture.snapshot.chunk import Chunk, FoundEvents, KeyCheck, chunks_between
from tailrace.client.commands import Aggregate, GetMore, Reply
from tailrace.cluster.merge import Merge
from tailrace.errors import StoreUnavailable
from tailrace.token import ResumeToken
from tailrace.token.resume_token import TokenData
from topic_messages import message_of

CAPTURED = ("d.a", "d.b")
NAMES = (*CAPTURED, "x.y")
SECONDS = 5_000
State = dict[tuple[str, int], int]
"""Documents by collection and `_id`; a document is a number."""


class Faults:
    """How often a call fails; 0 is never."""

    def __init__(self, scheduler: Scheduler, one_in: int) -> None:
        self.scheduler = scheduler
        self.one_in = one_in

    def before(self, what: str, make: Callable[[], Exception]) -> None:
        """Fail without an effect, or let others run first."""
        self.scheduler.point()
        self._fail(f"{what} fails", make)

    def after(self, what: str, make: Callable[[], Exception]) -> None:
        """Lose the answer to something that was done."""
        self._fail(f"{what} is done, its answer lost", make)

    def happens(self, one_in: int) -> bool:
        """Whether something rare happens, as long as there are faults at all."""
        return self.one_in > 0 and self.scheduler.choices.happens(one_in)

    def _fail(self, what: str, make: Callable[[], Exception]) -> None:
        if self.one_in and self.scheduler.choices.happens(self.one_in):
            self.scheduler.note(what)
            raise make()


# --- MongoDB


@dataclass(frozen=True)
class Entry:
    """An event in an oplog."""

    time: int
    hex: str
    token: bytes
    sort_key: bytes
    raw: bytes
    namespace: str

    @property
    def is_captured(self) -> bool:
        return self.namespace in CAPTURED


@dataclass
class Shard:
    """An oplog: entries in order, the first of them may be cut off."""

    entries: list[Entry] = field(default_factory=list)
    begins: int = 0
    """Entries up to this time are gone."""


@dataclass
class Cursor:
    """A cursor on a server: one place in each oplog, and the merge of what they give."""

    merge: Merge[Any]
    places: dict[str, int]
    """How many entries of each oplog were read."""
    mark: str


class Mongod:
    """A deployment with one shard or two."""

    def __init__(self, faults: Faults, shards: int) -> None:
        self.faults = faults
        self.clock = 10
        self.shards = {f"s{number}": Shard() for number in range(shards)}
        self.log: list[Entry] = []
        """Every event there ever was."""
        self.changes: list[tuple[int, str, int | None, int | None]] = []
        """Time, collection, `_id` (None: all) and the document (None: gone)."""
        self.dead_tokens: set[tuple[str, str]] = set()
        """Tokens that were answered with ChangeStreamHistoryLost, and to whom."""
        self.is_noted: Callable[[str], bool] = lambda _: False
        """Whether a token is in the ledger, as the process that sends it has read that."""
        self.sent_again: list[str] = []
        """Dead tokens that were sent by somebody who knew."""
        self._cursors: dict[int, Cursor] = {}
        self._numbers = itertools.count(1)
        self._written = 0

    # --- what writers do

    def write(self, namespace: str, key: int, kind: int) -> None:
        state = self.state_at(self.clock)
        there = (namespace, key) in state
        self.clock += 1
        self._written += 1
        if kind == 3 and there:
            self._log(namespace, "delete", key)
            self.changes.append((self.clock, namespace, key, None))
            return
        operation = "replace" if there else "insert"
        self._log(namespace, operation, key, fullDocument={"_id": key, "v": self._written})
        self.changes.append((self.clock, namespace, key, self._written))

    def write_together(self, namespace: str, keys: Sequence[int]) -> None:
        """A transaction: several events of one cluster time."""
        self.clock += 1
        there = self.state_at(self.clock)
        for key in keys:
            self._written += 1
            operation = "replace" if (namespace, key) in there else "insert"
            self._log(namespace, operation, key, fullDocument={"_id": key, "v": self._written})
            self.changes.append((self.clock, namespace, key, self._written))

    def drop(self, namespace: str) -> None:
        if any(name == namespace for name, _ in self.state_at(self.clock)):
            self.clock += 1
            self._log(namespace, "drop", None)
            self.changes.append((self.clock, namespace, None, None))

    def cut_history(self) -> None:
        """Let everything that is in the oplogs now roll out of them."""
        for shard in self.shards.values():
            shard.begins = self.clock
        self.clock += 1

    def state_at(self, time: int) -> State:
        state: State = {}
        for at, namespace, key, value in self.changes:
            if at > time:
                break
            if key is None:
                state = {place: each for place, each in state.items() if place[0] != namespace}
            elif value is None:
                state.pop((namespace, key), None)
            else:
                state[namespace, key] = value
        return state

    def captured_state(self) -> State:
        return {place: value for place, value in self.state_at(self.clock).items() if place[0] in CAPTURED}

    # --- what clients ask

    def operation_time(self) -> Timestamp:
        self._before("ping")
        return timestamp(self.clock)

    def names(self) -> list[str]:
        self._before("listCollections")
        return sorted({name for name, _ in self.captured_state()})

    def plan(self, namespace: str) -> list[Chunk]:
        self._before("plan")
        return chunks_between(namespace, [bson.encode({"_id": 3})])

    def aggregate(self, command: Aggregate) -> tuple[int, Reply]:
        self._before("aggregate")
        stage = command.command["pipeline"][0]["$changeStream"]
        token = stage.get("startAfter") or stage.get("resumeAfter")
        if token is not None:
            after = token["_data"]
            if (after, self.faults.scheduler.process.name) in self.dead_tokens or self.is_noted(after):
                self.sent_again.append(after)
            time = time_of(after)
        else:
            at = stage.get("startAtOperationTime")
            time = self.clock + 1 if at is None else at.inc
            after = mark(time)
        if any(time <= shard.begins for shard in self.shards.values()):
            self.dead_tokens.add((after, self.faults.scheduler.process.name))
            raise OperationFailure("Resume of change stream was not possible", 286, {"code": 286})
        merge: Merge[Any] = Merge()
        places = {}
        for name, shard in self.shards.items():
            merge.add(name, ResumeToken.from_hex(after))
            places[name] = sum(entry.hex <= after for entry in shard.entries)
        number = next(self._numbers)
        self._cursors[number] = Cursor(merge, places, after)
        self._after("aggregate")
        return number, self._reply(number, (), after)

    def get_more(self, command: GetMore) -> Reply:
        self.faults.before("getMore", self._error)
        cursor = self._cursors.get(command.cursor_id)
        if cursor is None or self.faults.happens(60):
            self._cursors.pop(command.cursor_id, None)
            raise OperationFailure("cursor not found", 43, {"code": 43})
        for name, shard in self.shards.items():
            place = cursor.places[name]
            if place < len(shard.entries) and shard.entries[place].time <= shard.begins:
                self._cursors.pop(command.cursor_id)
                raise OperationFailure("CappedPositionLost", 136, {"code": 136})
            left = len(shard.entries) - place
            some = shard.entries[place : place + (left - self.faults.scheduler.choices.below(min(left, 3) + 1))]
            cursor.places[name] = place + len(some)
            all_given = cursor.places[name] == len(shard.entries)
            upto = some[-1].hex if some else None
            if all_given:
                self.clock += 1  # a no-op, as an idle server writes it
                upto = mark(self.clock)
            if upto is not None:
                cursor.merge.feed(name, some, ResumeToken.from_hex(upto))
        most = 1 + self.faults.scheduler.choices.below(4)
        taken = cursor.merge.take(5 - most)
        cursor.mark = cursor.merge.position.hex
        self._after("getMore")
        return self._reply(command.cursor_id, [entry.raw for entry in taken if entry.is_captured], cursor.mark)

    def read(self, chunk: Chunk, at: Timestamp) -> list[bytes]:
        """Give the rows of a chunk as of a time: exactly, for there are servers that can."""
        self._before("find")
        first = bson.decode(chunk.lower)["_id"] if chunk.lower else 0
        last = bson.decode(chunk.upper)["_id"] if chunk.upper else 1_000
        token = ResumeToken.high_water_mark(at).to_bson()
        return [
            snapshot_event(name, bson.encode({"_id": key, "v": value}), token, at)
            for (name, key), value in sorted(self.state_at(at.inc).items())
            if name == chunk.namespace and first <= key < last
        ]

    def deletes(self, check: KeyCheck, at: Timestamp) -> list[bytes]:
        self._before("find")
        state = self.state_at(at.inc)
        token = ResumeToken.high_water_mark(at).to_bson()
        gone = (key for key in check.keys if (check.namespace, bson.decode(key)["_id"]) not in state)
        return [recovered_delete(check.namespace, key, token, at) for key in gone]

    def _reply(self, number: int, events: Sequence[bytes], upto: str) -> Reply:
        token = ResumeToken.from_hex(upto).to_bson()
        return Reply(number, "admin.$cmd.aggregate", list(events), token, timestamp(self.clock), 17)

    def _before(self, what: str) -> None:
        self.faults.before(what, self._error)

    def _after(self, what: str) -> None:
        self.faults.after(what, self._error)

    def _error(self) -> PyMongoError:
        if self.faults.scheduler.choices.below(2):
            labels = {"errorLabels": ["ResumableChangeStreamError"]}
            return OperationFailure("not primary", 189, {"code": 189, **labels})
        return AutoReconnect("connection closed")

    def _log(self, namespace: str, operation: str, key: int | None, **parts: Any) -> None:
        database, _, collection = namespace.partition(".")
        identifier = None if key is None else bson.encode({"_id": key})
        uuid = NAMES.index(namespace).to_bytes(16, "big")
        token = ResumeToken.encode(TokenData(timestamp(self.clock), uuid=uuid, event_identifier=identifier))
        event = {
            "_id": token.to_document(),
            "operationType": operation,
            "clusterTime": timestamp(self.clock),
            "ns": {"db": database, "coll": collection},
            **({} if key is None else {"documentKey": {"_id": key}}),
            **parts,
        }
        entry = Entry(self.clock, token.hex, token.to_bson(), token.key, bson.encode(event), namespace)
        names = sorted(self.shards)
        self.shards[names[(key or 0) % len(names)]].entries.append(entry)
        self.log.append(entry)


def timestamp(time: int) -> Timestamp:
    return Timestamp(SECONDS, time)


def mark(time: int) -> str:
    return ResumeToken.high_water_mark(timestamp(time)).hex


def time_of(token: str) -> int:
    return ResumeToken.from_hex(token).cluster_time.inc


class Reader:
    """Stands in for `ChunkReader`."""

    def __init__(self, server: Mongod, *_: object) -> None:
        self._server = server

    def events(self, piece: Chunk, at: Timestamp) -> list[bytes]:
        assert not isinstance(piece, FoundEvents)
        return self._server.read(piece, at)

    def deletes(self, piece: KeyCheck, at: Timestamp) -> list[bytes]:
        return self._server.deletes(piece, at)


# --- the position store


class CellTable:
    """What all processes share; `view` gives what one of them works with."""

    def __init__(self, faults: Faults, has_clock: bool, judge: Callable[[str, bytes, bool], None]) -> None:
        self.faults = faults
        self.has_clock = has_clock
        self.judge = judge
        """Told of every change before others see it."""
        self.cells: dict[str, bytes] = {}
        self.before: dict[str, tuple[bytes | None, float, object]] = {}
        """The cell before the last change, when that was, and who made it."""
        self.known: dict[tuple[str, str], bytes] = {}
        """What each process has read of each cell last."""


class CellView:
    """`Cells` of one process."""

    def __init__(self, table: CellTable) -> None:
        self._table = table
        self._faults = table.faults
        self.carried: Callable[[], None] | None = None
        """What becomes visible together with the next swap of a position."""

    def read(self, name: str) -> bytes | None:
        self._faults.before(f"read {name}", _store_away)
        old = self._table.before.get(name)
        scheduler = self._faults.scheduler
        cell = self._table.cells.get(name)
        if old and old[2] is not self and scheduler.now - old[1] < 0.2 and self._faults.happens(4):
            cell = old[0]  # a replica that has not heard of the newest yet
        if scheduler.running is not None:  # else it is the judge who looks
            self._table.known[scheduler.process.name, name] = cell or b""
        return cell

    def swap(self, name: str, expected: bytes | None, cell: bytes, change: bytes | None) -> bool:
        table, scheduler = self._table, self._faults.scheduler
        self._faults.before(f"swap {name}", _store_away)
        if table.cells.get(name) != expected:
            return False
        if self.carried is not None and not name.startswith("~"):
            self.carried()
            self.carried = None
        table.judge(name, cell, change is not None)
        table.before[name] = table.cells.get(name), scheduler.now, self
        table.cells[name] = cell
        self._faults.after(f"swap {name}", _store_away)
        return True

    def seconds_since_written(self, name: str, cell: bytes) -> float | None:
        if not self._table.has_clock or self._table.cells.get(name) != cell:
            return None
        return self._faults.scheduler.now - self._table.before[name][1]

    def changes(self, name: str, limit: int) -> list[bytes]:
        return []

    def names(self) -> list[str]:
        return list(self._table.cells)

    def close(self) -> None:
        pass


def _store_away() -> Exception:
    return StoreUnavailable("the store does not answer")


def position_in(cell: bytes) -> str | None:
    """Give the token of the position in a cell."""
    found = orjson.loads(cell)["position"]
    return None if found is None else found["token"]["_data"]


# --- Kafka


@dataclass(frozen=True)
class Delivered:
    """A record in the topic."""

    record: Record
    epoch: int
    sink: object
    """Which sink it was given to: each attempt has its own."""
    token: str
    is_row: bool
    time: int
    key: int | None


class Broker:
    """One topic, as its consumers see it."""

    def __init__(self, judge: Callable[[Delivered], None]) -> None:
        self.topic: list[Delivered] = []
        self.tokens: dict[str, int] = {}
        """How often each event is there; rows of snapshots and recovered deletes are not counted."""
        self.is_down = False
        self.left_behind: list[InFlight] = []
        """What processes and sinks that ended had sent: it lies in the broker's sockets, before what comes later."""
        self._judge = judge

    def append(self, record: Record, epoch: int, sink: object) -> None:
        self.take_left_behind()
        self._append(record, epoch, sink)

    def take_left_behind(self) -> None:
        """Read what lies in the sockets of killed processes: done before anybody else is answered."""
        left, self.left_behind = self.left_behind, []
        for each in left:
            self._append(each.record, each.epoch, each.sink)

    def _append(self, record: Record, epoch: int, sink: object) -> None:
        event = bson.decode(record.event)
        is_row = event["operationType"] == "read" or bool(event.get("recovered"))
        key = event.get("documentKey", {}).get("_id")
        delivered = Delivered(record, epoch, sink, event["_id"]["_data"], is_row, event["clusterTime"].inc, key)
        self._judge(delivered)
        self.topic.append(delivered)
        if not is_row:
            self.tokens[delivered.token] = self.tokens.get(delivered.token, 0) + 1

    def fold(self, *, by_moment: bool) -> State:
        """Give the documents as a consumer has them that goes by cluster time, or by the order of the records."""
        events = [(each, bson.decode(each.record.event)) for each in self.topic]
        if by_moment:
            events.sort(key=lambda pair: (pair[1]["clusterTime"].inc, "~" if pair[0].is_row else pair[0].token))
        state: State = {}
        for _, event in events:
            name = f"{event['ns']['db']}.{event['ns']['coll']}"
            if event["operationType"] == "drop":
                state = {place: value for place, value in state.items() if place[0] != name}
            elif event["operationType"] == "delete":
                state.pop((name, event["documentKey"]["_id"]), None)
            else:
                state[name, event["documentKey"]["_id"]] = event["fullDocument"]["v"]
        return state

    def messages(self) -> list[TopicMessage]:
        return [message_of(each.record) for each in self.topic]


@dataclass
class InFlight:
    """A record on its way, which arrives before `until` or not at all."""

    record: Record
    epoch: int
    sink: object
    until: float


class Producing:
    """The client library's side of one sink: what is on its way goes on although the process may be asleep."""

    def __init__(self, broker: Broker, scheduler: Scheduler, process: Process) -> None:
        self.process = process
        self.arrived = 0
        self.has_failed = False
        self.on_its_way: deque[InFlight] = deque()
        self._broker = broker
        self._scheduler = scheduler

    def run(self) -> None:
        """Deliver in order, each record in its own time."""
        scheduler = self._scheduler
        while True:
            scheduler.wait(lambda: bool(self.on_its_way), None)
            scheduler.wait(None, 0.01 * scheduler.choices.below(4) ** 3)
            if not self.on_its_way:
                continue
            first = self.on_its_way[0]
            if self._broker.is_down or self.has_failed:
                scheduler.wait(lambda: not self._broker.is_down, max(0.0, first.until - scheduler.now))
            if not self.on_its_way:
                continue
            if scheduler.now >= first.until:
                self.has_failed = True
            if self.has_failed:
                self.on_its_way.clear()
                continue
            self.on_its_way.popleft()
            self._broker.append(first.record, first.epoch, first.sink)
            self.arrived += 1

    def ended(self) -> None:
        """Leave behind what was sent, which is some of what is on its way."""
        sent = self._scheduler.choices.below(len(self.on_its_way) + 1)
        self._broker.left_behind.extend(list(self.on_its_way)[:sent])
        self.on_its_way.clear()
        if not self._broker.is_down:
            self._broker.take_left_behind()
