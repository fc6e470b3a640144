"""What one stream costs is paid by its own watchers: everybody else is answered meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from bson import Int64
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure

from gateway.running_gateway import RunningGateway
from gateway.wire_client import WireClient
from tailrace.engine import Dialect, Event
from tailrace.engine.live import LiveImages
from tailrace.engine.user_stages import UserStages
from tailrace.gateway import GatewayOptions
from tailrace.gateway.fairness import TokenBucket
from tailrace.hub import Hub
from tailrace.hub.event_log import EventLog
from tailrace.hub.staged import StagedChannel
from tailrace.oplog.tail import LiveOplog
from tailrace.stand import ReplicaSet

_PATIENCE = 60


class GatedImages:
    """The images of a live server, behind a gate that a test opens."""

    def __init__(self, live: LiveImages) -> None:
        self._live = live
        self.is_asked = threading.Event()
        self.gate = threading.Event()

    def current_document(self, namespace: bytes, uuid: bytes | None, key: bytes, since: int) -> bytes | None:
        self.is_asked.set()
        assert self.gate.wait(_PATIENCE)
        return self._live.current_document(namespace, uuid, key, since)

    def pre_image(self, uuid: bytes, time: int, index: int) -> bytes | None:
        return self._live.pre_image(uuid, time, index)

    def shard_key(self, uuid: bytes) -> Sequence[bytes] | None:
        return self._live.shard_key(uuid)


@contextmanager
def slow_lookups(mongodb: ReplicaSet) -> Iterator[tuple[RunningGateway, GatedImages]]:
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb.uri)
    images = GatedImages(LiveImages(client))
    dialect = Dialect.of(client.server_info()["version"])
    hub = Hub(LiveOplog(client, await_ms=200), dialect, images=images)
    running = RunningGateway(mongodb.uri, GatewayOptions(), hub)
    try:
        yield running, images
    finally:
        images.gate.set()
        running.close()
        client.close()


def test_a_lookup_that_takes_its_time_holds_back_nobody_else(mongodb: ReplicaSet, database: Database[Any]) -> None:
    database.orders.insert_one({"_id": 1})
    database.other.insert_one({"_id": 0})
    with slow_lookups(mongodb) as (running, images), running.client() as client, ThreadPoolExecutor(2) as threads:
        watched = client[database.name].orders
        streams = [watched.watch(full_document="updateLookup", max_await_time_ms=500) for _ in range(2)]
        while any(reader.is_catching_up for reader in tuple(running.hub.subscribers)):
            assert all(stream.try_next() is None for stream in streams)
        database.orders.update_one({"_id": 1}, {"$set": {"a": 1}})
        first = threads.submit(next, streams[0])
        assert images.is_asked.wait(_PATIENCE)

        database.other.insert_one({"_id": 1})  # no entry for the channel, but time goes on for those who share it
        second = threads.submit(next, streams[1])
        with running.client(socketTimeoutMS=15_000) as bystander:
            for number in range(20):
                bystander.admin.command("ping")
                with bystander[database.name].other.watch(max_await_time_ms=100) as stream:
                    database.other.insert_one({"number": number})
                    assert next(stream)["fullDocument"]["number"] == number
            assert not images.gate.is_set()
        images.gate.set()
        for looked_up in (first, second):
            assert looked_up.result(_PATIENCE)["fullDocument"] == {"_id": 1, "a": 1}
        for each in streams:
            each.close()


def test_a_watcher_whose_stages_cost_too_much_fails_alone(
    mongodb: ReplicaSet,
    database: Database[Any],
    start_gateway: Callable[..., RunningGateway],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Costly stages have threads of their own: however many there are, they leave all others to everybody else."""
    threads_of_stages: set[str] = set()
    make_events = EventLog.make_events

    def noting(log: EventLog) -> None:
        if log.is_costly:
            threads_of_stages.add(threading.current_thread().name.partition("_")[0])
        make_events(log)

    monkeypatch.setattr(EventLog, "make_events", noting)
    gateway = start_gateway(mongodb.uri, stage_seconds=0.5)
    costly = [
        [{"$match": {"fullDocument.s": {"$regex": "(?s)a*.[yz]"}}}],
        [{"$match": {"fullDocument.s": {"$regex": "(?s)a*.[xyz]"}}}, {"$project": {"x": {"$add": [1, 1]}}}],
        [
            {
                "$addFields": {
                    "x": {"$map": {"input": {"$range": [0, 1_000_000]}, "in": {"$indexOfCP": ["$fullDocument.s", "b"]}}}
                }
            }
        ],
    ]
    collection = database.create_collection("c")
    with gateway.client(socketTimeoutMS=30_000) as client, ThreadPoolExecutor(len(costly)) as threads:
        watched = client[database.name].c
        with watched.watch() as bystander:
            streams = [watched.watch(pipeline) for pipeline in costly]
            failing = [threads.submit(next, stream) for stream in streams]
            collection.insert_one({"_id": 0, "s": "a" * 60_000})
            for number in range(1, 50):
                collection.insert_one({"_id": number})
            assert [next(bystander)["documentKey"]["_id"] for _ in range(50)] == list(range(50))
            for failed in failing:
                error = failed.exception(_PATIENCE)
                assert isinstance(error, OperationFailure)
                assert error.code == 50
    assert threads_of_stages == {"stages"}


@pytest.mark.parametrize("header", [{}, {"operationType": "insert"}], ids=["behind a channel", "in a channel"])
def test_comparisons_of_large_events_leave_the_event_loop_alone(
    mongodb: ReplicaSet,
    database: Database[Any],
    start_gateway: Callable[..., RunningGateway],
    monkeypatch: pytest.MonkeyPatch,
    header: dict[str, Any],
) -> None:
    """A filter that only compares is quick on small events. A path through a large array is not, and has a budget."""
    threads_of_stages: set[str] = set()
    run_stages = UserStages.__call__

    def noting(stages: UserStages, events: list[Event], given: list[Event]) -> None:
        if sum(len(event.raw) for event in events) > 100_000:
            threads_of_stages.add(threading.current_thread().name.partition("_")[0])
        run_stages(stages, events, given)

    monkeypatch.setattr(UserStages, "__call__", noting)
    gateway = start_gateway(mongodb.uri, stage_seconds=0.8)
    many = [{f"fullDocument.items.x{number}": {"$ne": 5}} for number in range(180)]
    collection = database.create_collection("c")
    with gateway.client(socketTimeoutMS=60_000) as client:
        watched = client[database.name].c
        with (
            watched.watch() as bystander,
            watched.watch([{"$match": {**header, "$and": many}}]) as costly,
            watched.watch([{"$match": {**header, "$and": many[:1]}}]) as cheap,
        ):
            for stream in (bystander, costly, cheap):
                assert stream.try_next() is None
            collection.insert_many([{"_id": 0, "items": [{"y": 1}] * 20_000}, {"_id": 1}])
            assert [next(stream)["documentKey"]["_id"] for stream in (bystander, cheap) for _ in range(2)] == [0, 1] * 2
            with pytest.raises(OperationFailure, match="cost too much") as caught:
                next(costly)
            assert caught.value.code == 50
    assert threads_of_stages == {"stages"}


def test_streams_that_nearly_use_up_their_budgets_leave_threads_to_others(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    """Each event of each of ann's streams costs some tenths of a second; ben has one stage that costs nothing.

    However much ann has to be done, ben's comes in between: none of her streams has all its events by then.
    """
    gateway = start_gateway(secured.uri, stage_seconds=60.0)
    count, elements = 40, {"$range": [0, 50_000]}
    with secured.client() as root, ExitStack() as opened:
        root.pub.costly.drop()
        root.pub.costly.insert_one({})
        ben = opened.enter_context(WireClient(gateway.port))
        ben.authenticate("ben", "secret")
        cheap = _open(ben, {"$addFields": {"x": {"$add": [1, 1]}}})
        for number in range(6):
            ann = opened.enter_context(WireClient(gateway.port))
            ann.authenticate("ann", "secret")
            sums = {"$map": {"input": elements, "in": {"$add": ["$$this", number]}}}
            cursor = _open(ann, {"$addFields": {"x": {"$size": sums}}})
            ann.send({"getMore": cursor, "collection": "costly", "maxTimeMS": 60_000, "$db": "pub"})
        root.pub.costly.insert_many([{"_id": number} for number in range(count)])
        seen = 0
        while seen < count:
            told = ben.command({"getMore": cheap, "collection": "costly", "maxTimeMS": 60_000, "$db": "pub"})
            seen += len(told["cursor"]["nextBatch"])
        logs = [channel for channel in gateway.hub._channels.values() if isinstance(channel, StagedChannel)]
        behind = [log.base.end - log.index for log in logs]
        assert [left > 0 for left in sorted(behind)] == [False] + [True] * 6, behind


def _open(client: WireClient, stage: dict[str, Any]) -> Int64:
    pipeline = [{"$changeStream": {}}, stage]
    told = client.command({"aggregate": "costly", "pipeline": pipeline, "cursor": {}, "$db": "pub"})
    assert told["ok"] == 1, told
    return Int64(told["cursor"]["id"])


def test_many_quick_filters_share_the_event_loop(
    mongodb: ReplicaSet,
    database: Database[Any],
    start_gateway: Callable[..., RunningGateway],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes about a millisecond for this event, which is little; all of them together would stop the loop."""
    on_loop = off_loop = 0
    run_stages = UserStages.__call__

    def noting(stages: UserStages, events: list[Event], given: list[Event]) -> None:
        nonlocal on_loop, off_loop
        is_loop = not threading.current_thread().name.startswith(("gateway", "stages"))
        on_loop, off_loop = on_loop + is_loop, off_loop + (not is_loop)
        run_stages(stages, events, given)

    gateway = start_gateway(mongodb.uri)
    collection = database.create_collection("c")
    with gateway.client(maxPoolSize=100) as client, ThreadPoolExecutor(60) as threads, ExitStack() as opened:
        watched = client[database.name].c
        filters = [{f"fullDocument.items.x{number}": {"$ne": 5}} for number in range(60)]
        streams = [
            opened.enter_context(watched.watch([{"$match": each}], max_await_time_ms=20_000)) for each in filters
        ]
        while any(reader.is_catching_up for reader in tuple(gateway.hub.subscribers)):
            time.sleep(0.05)
        monkeypatch.setattr(UserStages, "__call__", noting)
        gateway.gateway.streams._on_loop = TokenBucket(0.01, 0.005, 0.005, time.monotonic())
        seen = [threads.submit(next, stream) for stream in streams]
        collection.insert_one({"_id": 0, "items": [{"y": 1}] * 520})
        assert [each.result(_PATIENCE)["documentKey"]["_id"] for each in seen] == [0] * 60
    assert off_loop > on_loop, (on_loop, off_loop)
