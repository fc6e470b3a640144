from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import bson
from bson.timestamp import Timestamp

from tailrace.capture.producer.merging import Merge, cut, event_time
from tailrace.capture.snapshot import Chunk, Rows
from tailrace.capture.source.reader import ReadBatch, split
from tailrace.capture.source.source import UnfinishedBatch
from tailrace.driver import Batch
from tailrace.token import ResumeToken, TokenData

KEYS = 8
INTERLEAVINGS = 4_000


def event(time: int, key: int, index: int = 0) -> bytes:
    data = TokenData(Timestamp(time, 1), txn_op_index=index, uuid=bytes(16), event_identifier=bson.encode({"_id": key}))
    token = ResumeToken.encode(data).to_document()
    return bson.encode({"_id": token, "key": key, "version": time})


@dataclass
class Server:
    """A history of writes to a few keys; the state at each time can be read, as from a real server."""

    chance: random.Random
    time: int = 1
    events: list[bytes] = field(default_factory=list)
    states: list[dict[int, int]] = field(default_factory=lambda: [{}, {}])

    def write(self) -> None:
        self.time += 1
        state = dict(self.states[-1])
        for index in range(self.chance.choice([1, 1, 1, 3])):  # sometimes a transaction: many events of one time
            key = self.chance.randrange(KEYS)
            state[key] = self.time
            self.events.append(event(self.time, key, index))
        self.states.append(state)


@dataclass
class Reads:
    """Chunks of one key each, read by workers that answer whenever chance wants."""

    server: Server
    chance: random.Random
    left: list[int] = field(default_factory=lambda: list(range(KEYS)))
    under_way: list[Rows] = field(default_factory=list)
    ready: list[Rows] = field(default_factory=list)

    @property
    def barrier(self) -> Timestamp | None:
        return min((rows.at for rows in self.under_way + self.ready), default=None)

    def order(self) -> None:
        while self.left and len(self.under_way) + len(self.ready) < 3 and self.chance.random() < 0.5:
            key, now = self.left.pop(), self.server.time
            version = self.server.states[now].get(key)
            found = [] if version is None else [bson.encode({"key": key, "version": version})]
            self.under_way.append(Rows(Chunk("d.c", key, None, None), Timestamp(now, 1), found))

    def collect(self, wait: float = 0.0) -> None:
        arrived = [rows for rows in self.under_way if self.chance.random() < 0.5]
        self.under_way = [rows for rows in self.under_way if rows not in arrived]
        self.ready += arrived

    def due(self, passed: Callable[[Timestamp], bool]) -> list[Rows]:
        due = sorted((rows for rows in self.ready if passed(rows.at)), key=lambda rows: rows.at)
        self.ready = [rows for rows in self.ready if rows not in due]
        return due


def read_from(server: Server, chance: random.Random) -> Callable[[], ReadBatch | None]:
    place = 0

    def read() -> ReadBatch | None:
        nonlocal place
        if chance.random() < 0.3:
            return None
        some = server.events[place : place + chance.randrange(1, 6)]
        place += len(some)
        if some:
            token = bson.encode(bson.decode(some[-1])["_id"])
        else:
            token = ResumeToken.high_water_mark(Timestamp(server.time, 1)).to_bson()
        return ReadBatch(some, token, 0, not some, None)

    return read


def delivered_in_one_interleaving(seed: int) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Run writer, workers and merge in an order given by chance; give the final state and what was delivered."""
    chance = random.Random(seed)
    server = Server(chance)
    for _ in range(chance.randrange(6)):
        server.write()
    begin = len(server.events)
    server.events = server.events[begin:]  # the stream begins here: what was before comes from the snapshot
    reads = Reads(server, chance)
    merge, read = Merge(reads), read_from(server, chance)
    records: list[tuple[int, int]] = []
    writes = chance.randrange(12)
    for _ in range(600):
        if writes and chance.random() < 0.4:
            server.write()
            writes -= 1
        batch = merge.next_batch(read)
        if batch is not None:
            records += [(found["key"], found["version"]) for found in map(bson.decode, batch.events)]
            merge.delivered(batch)
        for rows in merge.next_rows():
            records += [(found["key"], found["version"]) for found in map(bson.decode, rows.events)]
        at_the_end = batch is not None and batch.caught_up
        if at_the_end and not writes and not (reads.left or reads.under_way or reads.ready):
            return server.states[-1], records
    raise AssertionError(f"seed {seed} does not come to an end")


def test_in_any_interleaving_nothing_is_lost_and_no_key_ever_goes_back() -> None:
    for seed in range(INTERLEAVINGS):
        state, records = delivered_in_one_interleaving(seed)
        rebuilt: dict[int, int] = {}
        for key, version in records:
            assert version >= rebuilt.get(key, 0), f"seed {seed}: key {key} goes back"
            rebuilt[key] = version
        assert rebuilt == state, f"seed {seed}"


def test_a_batch_of_which_nothing_is_left_is_not_the_end_of_its_time() -> None:
    """A transaction begins with the events of others: a run that ends by itself would end before its own ones."""
    time = Timestamp(5, 1)
    token = ResumeToken.high_water_mark(time).to_bson()
    merge = Merge(None)
    for found, has_passed in ((Batch([], token, time), False), (UnfinishedBatch(token, time), False),
                              (Batch([], token, time), True)):  # fmt: skip
        (batch,) = split(found)
        merge.delivered(batch)
        assert merge.has_passed(time) is has_passed


def test_a_portion_is_cut_behind_all_events_of_a_time() -> None:
    events = [event(1, 0), event(2, 0, 0), event(2, 1, 1), event(3, 0)]
    batch = ReadBatch(events, b"end", 0, True, None)
    now, later = cut(batch, Timestamp(2, 1))
    assert now is not None
    assert later is not None
    assert [event_time(each).time for each in now.events] == [1, 2, 2]
    assert not now.caught_up
    assert later.token == b"end"
    assert cut(batch, Timestamp(3, 1)) == (batch, None)
    assert cut(batch, Timestamp(0, 1)) == (None, batch)


def test_the_first_batch_of_a_stream_does_not_prove_that_nothing_follows() -> None:
    """A stream that was opened one tick behind the newest operation has the next write's time as its mark."""
    mark = ResumeToken.high_water_mark(Timestamp(5, 1)).to_bson()
    merge = Merge(None)
    empty = ReadBatch([], mark, 0, True, None)
    merge.delivered(empty)
    assert merge.has_passed(Timestamp(4, 1))
    assert not merge.has_passed(Timestamp(5, 1))
    merge.delivered(empty)
    assert merge.has_passed(Timestamp(5, 1))
    assert not merge.has_passed(Timestamp(5, 2)), "an empty batch before a time says nothing of that time"
