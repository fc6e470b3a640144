"""The hub on a real replica set: every subscriber gets what the server's own stream gives, byte for byte."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tailrace.engine import Dialect, parse_command
from tailrace.engine import stream as stream_module
from tailrace.engine.live import LiveImages, operation_time
from tailrace.engine.options import StreamSpec
from tailrace.errors import ChangeStreamError, ThreadDied
from tailrace.hub import Hub, Subscription
from tailrace.hub import hub as hub_module
from tailrace.hub import staged as staged_module
from tailrace.hub.channel import Channel
from tailrace.hub.staged import StagedChannel
from tailrace.oplog.source import OplogBatch
from tailrace.oplog.tail import LiveOplog
from tailrace.stand import ReplicaSet
from waiting import wait_until

Document = dict[str, Any]
_PATIENCE = 20


class Fixture:
    """A hub, and subscriptions that are polled until they have what is expected."""

    def __init__(self, replica_set: ReplicaSet, **options: Any) -> None:
        self.client = replica_set.client()
        self.dialect = Dialect.of(self.client.server_info()["version"])
        self.hub = Hub(LiveOplog(self.client, await_ms=200), self.dialect, images=LiveImages(self.client), **options)

    def subscribe(
        self, database: str, collection: str | None, *stages: Document, seconds: float | None = None, **options: Any
    ) -> Subscription:
        """Subscribe; `seconds` is the budget of the stages for one event."""
        command = {"aggregate": collection or 1, "pipeline": [{"$changeStream": options}, *stages], "cursor": {}}
        spec = replace(parse_command(command, database, self.dialect), stage_seconds=seconds)
        return self.hub.subscribe(spec, latest=operation_time(self.client), now=datetime.now(UTC))

    def close(self) -> None:
        self.hub.close()
        self.client.close()


@pytest.fixture
def on_hub(mongodb: ReplicaSet) -> Iterator[Callable[..., Fixture]]:
    made: list[Fixture] = []

    def make(**options: Any) -> Fixture:
        made.append(Fixture(mongodb, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def take(subscription: Subscription, count: int, max_events: int | None = None) -> list[bytes]:
    """Poll until so many events have come."""
    found: list[bytes] = []
    deadline = time.monotonic() + _PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} events"
        batch = subscription.poll(max_events)
        found += [event.raw for event in batch.events]
        if not batch.events:
            time.sleep(0.01)
    return found


def take_until_shared(subscription: Subscription) -> None:
    """Poll a subscription without events until it reads from its channel."""
    deadline = time.monotonic() + _PATIENCE
    while subscription.channel is None:
        assert time.monotonic() < deadline
        assert not subscription.poll().events
        time.sleep(0.01)


def from_server(database: Database[Document], count: int, pipeline: list[Document], **options: Any) -> list[bytes]:
    """What the server's own stream gives."""
    raw = database.with_options(codec_options=bson.CodecOptions(RawBSONDocument))
    with raw.watch(pipeline, max_await_time_ms=200, **options) as stream:
        return [bytes(next(stream).raw) for _ in range(count)]  # type: ignore[attr-defined]


def write(database: Database[Document], collections: int, count: int) -> None:
    """Inserts, updates, deletes and a transaction, over some collections."""
    for number in range(count):
        collection = database[f"c{number % collections}"]
        collection.insert_one({"_id": number, "n": number})
        collection.update_one({"_id": number}, {"$set": {"n": -1 - number}})
        if number % 3 == 0:
            collection.delete_one({"_id": number})
    with database.client.start_session() as session, session.start_transaction():
        for number in range(collections):
            database[f"c{number}"].insert_one({"_id": f"in transaction {number}"}, session=session)


@pytest.mark.mongodb("4.2.6", "4.4.2", "5.0.4", "6.0.5", "6.0.27", "7.0.28")
def test_subscribers_get_what_the_server_gives(on_hub: Callable[..., Fixture], database: Database[Document]) -> None:
    for number in range(3):
        database.create_collection(f"c{number}")
    start = database.client.admin.command("ping")["operationTime"]
    hub = on_hub()
    whole = hub.subscribe(database.name, None)
    twin = hub.subscribe(database.name, None)
    one = hub.subscribe(database.name, "c1")
    filtered = hub.subscribe(database.name, None, {"$match": {"operationType": "delete"}})
    looked_up = hub.subscribe(database.name, "c2", fullDocument="updateLookup")
    write(database, 3, 30)
    expected = from_server(database, 73, [], start_at_operation_time=bson.Timestamp(start.time, start.inc + 1))
    assert take(whole, 73) == take(twin, 73, max_events=7) == expected
    named = [event for event in expected if bson.decode(event)["ns"]["coll"] == "c1"]
    assert take(one, len(named)) == named
    deletes = [event for event in expected if bson.decode(event)["operationType"] == "delete"]
    assert take(filtered, len(deletes)) == deletes
    updates = [bson.decode(event) for event in take(looked_up, 21)]
    assert all("fullDocument" in event for event in updates if event["operationType"] == "update")


def test_a_start_in_the_past_is_caught_up_and_then_shared(
    on_hub: Callable[..., Fixture], database: Database[Document]
) -> None:
    database.create_collection("c0")
    start = database.client.admin.command("ping")["operationTime"]
    write(database, 1, 50)
    hub = on_hub()
    late = hub.subscribe(database.name, None, startAtOperationTime=start)
    early = take(late, 117, max_events=10)
    take_until_shared(late)
    database.c0.insert_one({"_id": "new"})
    events = early + take(late, 1)
    assert events == from_server(database, len(events), [], start_at_operation_time=start)
    assert hub.hub.counts.scans == 1


def test_every_token_resumes_and_events_come_once(on_hub: Callable[..., Fixture], database: Database[Document]) -> None:
    database.create_collection("c0")
    hub = on_hub()
    take_until_shared(first := hub.subscribe(database.name, "c0"))
    write(database, 1, 20)
    events = take(first, 48)
    for number, event in enumerate(events[:-1]):
        resumed = hub.subscribe(database.name, "c0", resumeAfter=bson.decode(event)["_id"])
        size = random.Random(number).choice([1, 2, 5, None])
        assert take(resumed, 47 - number, size) == events[number + 1 :]
        resumed.close()


def test_those_who_ask_for_the_same_share_the_bytes_and_the_work(
    on_hub: Callable[..., Fixture], database: Database[Document]
) -> None:
    database.create_collection("c0")
    hub = on_hub()
    many = [hub.subscribe(database.name, "c0") for _ in range(20)]
    other = hub.subscribe(database.name, "c1")
    for subscription in (*many, other):
        take_until_shared(subscription)
    database.c0.insert_one({"_id": 1})
    (shared,) = {id(take(subscription, 1)[0]) for subscription in many}
    assert shared
    assert hub.hub.channels == 2
    other.poll()
    assert other.channel is not None
    assert other.channel.buffered_bytes == 0


STAGES: list[Document] = [
    {"$project": {"ns": 0}},
    {"$addFields": {"seen": True}},
    {"$match": {"$expr": {"$gt": ["$clusterTime", None]}}},
    {"$match": {"updateDescription.updatedFields.n": {"$lt": -3}}},
    {"$replaceWith": {"_id": "$_id", "key": "$documentKey._id"}},
]


def test_those_who_differ_in_their_stages_share_what_comes_before(
    on_hub: Callable[..., Fixture], database: Database[Document]
) -> None:
    database.create_collection("c0")
    start = database.client.admin.command("ping")["operationTime"]
    hub = on_hub()
    plain = hub.subscribe(database.name, None)
    streams = [hub.subscribe(database.name, None, stage) for stage in STAGES]
    for subscription in (plain, *streams):
        take_until_shared(subscription)
    assert {stream.channel.base for stream in streams if isinstance(stream.channel, StagedChannel)} == {plain.channel}
    write(database, 1, 12)
    since = bson.Timestamp(start.time, start.inc + 1)
    for stream, stage in zip(streams, STAGES, strict=True):
        count = 9 if "updateDescription.updatedFields.n" in str(stage) else 29
        assert take(stream, count, 5) == from_server(database, count, [stage], start_at_operation_time=since)
    assert take(plain, 29) == from_server(database, 29, [], start_at_operation_time=since)
    database.c0.drop()
    database.client.drop_database(database.name)
    for stream in streams:
        stream.close()
    assert hub.hub.channels <= 1
    plain.close()
    assert hub.hub.channels == 0


def test_a_stage_that_fails_ends_only_its_own_stream(
    on_hub: Callable[..., Fixture], database: Database[Document]
) -> None:
    database.create_collection("c0")
    hub = on_hub()
    good = hub.subscribe(database.name, "c0", {"$addFields": {"half": {"$divide": ["$fullDocument.n", 2]}}})
    bad = hub.subscribe(database.name, "c0", {"$addFields": {"part": {"$divide": [1, "$fullDocument.n"]}}})
    told = []
    with database.c0.watch([{"$addFields": {"part": {"$divide": [1, "$fullDocument.n"]}}}]) as direct:
        for subscription in (good, bad):
            take_until_shared(subscription)
        database.c0.insert_one({"_id": 1, "n": 0})
        for attempt in (lambda: next(direct), lambda: take(bad, 1)):
            with pytest.raises((OperationFailure, ChangeStreamError)) as caught:
                attempt()
            error: Any = caught.value
            told.append(error.details["errmsg"] if isinstance(error, OperationFailure) else error.message)
    assert told[0] == told[1]
    assert bson.decode(take(good, 1)[0])["half"] == 0


def test_a_slow_subscriber_falls_out_and_loses_nothing(
    on_hub: Callable[..., Fixture], database: Database[Document]
) -> None:
    """Neither its channel nor the ring grow; it goes on with a scan of its own, and others do not notice."""
    database.create_collection("c0")
    hub = on_hub(ring_bytes=300_000, channel_bytes=300_000)
    slow, quick = hub.subscribe(database.name, "c0"), hub.subscribe(database.name, "c0")
    take_until_shared(slow)
    take_until_shared(quick)
    padding = "x" * 2_000
    quick_events: list[bytes] = []
    for start in range(0, 1_000, 100):
        database.c0.insert_many([{"_id": start + number, "padding": padding} for number in range(100)])
        quick_events += take(quick, 100)
        assert hub.hub.ring_size < 600_000
        assert quick.channel is None or quick.channel.buffered_bytes < 600_000
    assert take(slow, 1_000, max_events=50) == quick_events
    take_until_shared(slow)
    assert hub.hub.counts.scans > 0


def test_an_invalidate_ends_all_who_share_it(on_hub: Callable[..., Fixture], database: Database[Document]) -> None:
    database.create_collection("c0")
    hub = on_hub()
    streams = [hub.subscribe(database.name, "c0") for _ in range(3)]
    for stream in streams:
        take_until_shared(stream)
    database.c0.drop()
    for stream in streams:
        types = [bson.decode(event)["operationType"] for event in take(stream, 2)]
        assert types == ["drop", "invalidate"]
        assert stream.is_closed
    again = hub.subscribe(database.name, "c0", startAfter=streams[0].position.to_document())
    database.c0.insert_one({"_id": 1})
    assert [bson.decode(event)["operationType"] for event in take(again, 1)] == ["insert"]


def test_an_idle_position_moves_with_the_oplog(on_hub: Callable[..., Fixture], database: Database[Document]) -> None:
    database.create_collection("c0")
    hub = on_hub()
    idle = hub.subscribe(database.name, "c0")
    take_until_shared(idle)
    before = idle.position
    database.other.insert_one({})
    deadline = time.monotonic() + _PATIENCE
    while idle.position <= before:
        assert time.monotonic() < deadline
        assert not idle.poll().events
        time.sleep(0.01)


class Faulty:
    """The oplog of a real server, whose tail gives one entry that is none."""

    def __init__(self, oplog: LiveOplog) -> None:
        self._oplog = oplog
        self.is_due = False

    def newest(self) -> int:
        return self._oplog.newest()

    def entry_at(self, time: int) -> bytes:
        return self._oplog.entry_at(time)

    def open(self, since: int) -> Any:
        reader = self._oplog.open(since)

        class Reader:
            def __next__(_) -> OplogBatch:
                batch = next(reader)
                if self.is_due and batch.entries:
                    self.is_due = False
                    return OplogBatch([*batch.entries[:-1], None], batch.reached)  # type: ignore[list-item]
                return batch

            def close(_) -> None:
                reader.close()

        return Reader()


def test_a_batch_that_cannot_be_spread_is_reported_and_the_tail_goes_on(
    mongodb: ReplicaSet, database: Database[Document]
) -> None:
    with mongodb.client() as client:
        dialect = Dialect.of(client.server_info()["version"])
        oplog = Faulty(LiveOplog(client, await_ms=200))
        with Hub(oplog, dialect, images=LiveImages(client), catch_up=LiveOplog(client, await_ms=200)) as hub:
            command = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
            spec = parse_command(command, database.name, dialect)
            subscription = hub.subscribe(spec, latest=operation_time(client), now=datetime.now(UTC))
            take_until_shared(subscription)
            oplog.is_due = True
            for number in range(3):
                database.c.insert_one({"_id": number})
            wait_for_restart(hub)
            assert isinstance(hub.error, ThreadDied | None), "until the next batch has come"
            database.c.insert_one({"_id": 3})
            found = take(subscription, 4)
            assert [bson.decode(event)["documentKey"]["_id"] for event in found] == [0, 1, 2, 3]
            subscription.close()


def wait_for_restart(hub: Hub) -> None:
    deadline = time.monotonic() + _PATIENCE
    while hub.counts.restarts == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("stage", [{"$match": {"operationType": "insert"}}, {"$addFields": {"x": 1}}])
def test_stages_that_take_long_give_way_and_lose_nothing(
    on_hub: Callable[..., Fixture], database: Database[Document], monkeypatch: pytest.MonkeyPatch, stage: Document
) -> None:
    """In a channel of its own, behind another one, and while it catches up: one event at a time, in the same order.

    A transaction has many events of one time, of which some are made and others not yet.
    """
    for module in (stream_module, staged_module):
        monkeypatch.setattr(module, "STAGES_SLICE", -1.0)
    collection = database.create_collection("c")
    start = database.client.admin.command("ping")["operationTime"]
    hub = on_hub()
    stages = [stage, {"$match": {"fullDocument.n": {"$ne": 3}}}]
    live = hub.subscribe(database.name, "c", *stages, seconds=60.0)
    take_until_shared(live)
    padding = "x" * 40_000
    with database.client.start_session() as session, session.start_transaction():
        collection.insert_many([{"_id": number, "n": number, "p": padding} for number in range(6)], session=session)
    collection.insert_many([{"_id": number, "n": number, "p": padding} for number in range(6, 9)])
    wait_until(lambda: hub.hub.reached >= operation_time(hub.client))
    expected = from_server(database, 8, stages, start_at_operation_time=start)
    first = [event.raw for event in live.poll().events]
    assert first == expected[:1]
    joining = hub.subscribe(database.name, "c", *stages, seconds=60.0, startAtOperationTime=start)
    assert first + take(live, 7) == expected
    assert take(joining, 8) == expected
    collection.insert_one({"_id": 10})
    assert take(live, 1) == take(joining, 1)


def test_entries_are_spread_while_the_stages_of_a_new_subscriber_are_compiled(
    on_hub: Callable[..., Fixture], database: Database[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = database.create_collection("c")
    hub = on_hub()
    compiling, gate = threading.Event(), threading.Event()
    make = Hub._new_channel

    def gated(hub: Hub, spec: StreamSpec, latest: int, now: datetime) -> Channel:
        made = make(hub, spec, latest, now)
        if spec.stages:
            compiling.set()
            assert gate.wait(_PATIENCE)
        return made

    monkeypatch.setattr(Hub, "_new_channel", gated)
    plain = hub.subscribe(database.name, "c")
    take_until_shared(plain)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(hub.subscribe, database.name, "c", {"$match": {"operationType": "insert"}})
        try:
            assert compiling.wait(_PATIENCE)
            collection.insert_many([{"_id": number} for number in range(3)])
            collection.delete_one({"_id": 0})
            assert len(take(plain, 4)) == 4
        finally:
            gate.set()
        late = opening.result(_PATIENCE)
    collection.insert_one({"_id": 3})
    assert [bson.decode(event)["documentKey"]["_id"] for event in take(late, 4)] == [0, 1, 2, 3]


def test_streams_that_catch_up_and_are_left_hold_little_and_lose_nothing(
    on_hub: Callable[..., Fixture], database: Database[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a document of any size in the oplog each of them would keep a copy for as long as nobody reads on."""
    monkeypatch.setattr(hub_module, "SCAN_BYTES", 1_000_000)
    start = database.client.admin.command("ping")["operationTime"]
    for number in range(6):
        database.c.insert_one({"_id": number, "p": "x" * 300_000})
    with database.client.start_session() as session, session.start_transaction():
        database.c.insert_many([{"_id": number, "p": "x" * 100_000} for number in range(6, 9)], session=session)
    hub = on_hub(ring_bytes=1)
    expected = from_server(database, 9, [], start_at_operation_time=start)
    subscriptions = [hub.subscribe(database.name, "c", startAtOperationTime=start) for _ in range(8)]
    found: list[list[bytes]] = [[] for _ in subscriptions]
    while min(map(len, found)) < 9:
        for seen, subscription in zip(found, subscriptions, strict=True):
            seen += [event.raw for event in subscription.poll(1).events]
        streams = [each.own._stream for each in subscriptions if each.is_catching_up]
        assert sum(len(entry) for stream in streams for entry in stream._read.entries) <= 1_000_000
    assert found == [expected] * 8
    assert hub.hub.counts.scans > 8
    database.c.insert_one({"_id": 9})
    assert len({take(subscription, 1)[0] for subscription in subscriptions}) == 1
    for subscription in subscriptions:
        subscription.close()
    assert (hub.hub._scan_bytes, hub.hub.upstream_cursors) == (0, 1)
