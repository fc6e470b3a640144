"""What an idle shard promised holds: over restarts that forget the time, elections and members that lag behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Timestamp
from bson.int64 import Int64
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from tailrace.cluster import ClusterHub, MergedReading, Order
from tailrace.engine import parse_command
from tailrace.hub import Subscription
from tailrace.stand import ReplicaSet
from tailrace.token.resume_token import ResumeToken

Document = dict[str, Any]
_PATIENCE = 60
_QUIET = {"writePeriodicNoops": False}
_FROM_THE_FUTURE = 90


class Writer:
    """Writes to shards as a router does: each is told the newest time that any has shown."""

    def __init__(self, shards: dict[str, ReplicaSet], stack: ExitStack) -> None:
        self._clients = {name: stack.enter_context(shard.client()) for name, shard in shards.items()}
        self._newest: Document | None = None
        self.written: list[str] = []

    def insert(self, shard: str, key: str) -> None:
        """Insert a document, once, whatever happens to the shard meanwhile."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._upsert(shard, key)
                self.written.append(key)
                return
            except PyMongoError:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def jump(self, shard: str, seconds: int) -> None:
        """Move a shard's clock, as a member with a wrong wall clock would."""
        now = self._clients[shard].admin.command("ping")["$clusterTime"]["clusterTime"]
        signature = {"hash": b"\0" * 20, "keyId": Int64(0)}
        self._newest = {"clusterTime": Timestamp(now.time + seconds, 1), "signature": signature}

    def _upsert(self, shard: str, key: str) -> None:
        orders = self._clients[shard].shop.get_collection(
            "orders", write_concern=WriteConcern("majority", wtimeout=20_000)
        )
        with self._clients[shard].start_session() as session:
            if self._newest:
                session.advance_cluster_time(self._newest)
            orders.replace_one({"_id": key}, {}, upsert=True, session=session)
            self._newest = dict(session.cluster_time or {})


@contextmanager
def two_shards(
    start_mongodb: Callable[..., ReplicaSet], nodes: int, order: Order = Order.STRICT, **options: Any
) -> Iterator[tuple[dict[str, ReplicaSet], ClusterHub, Writer]]:
    """Two replica sets that are read as shards by a fixed list, and a writer for both."""
    shards = {name: start_mongodb("6.0.5", name=name, nodes=nodes, parameters=_QUIET) for name in ("s0", "s1")}
    with ExitStack() as stack:
        writer = Writer(shards, stack)
        for name in shards:
            writer.insert(name, f"first of {name}")
        writer.written.clear()
        hub = stack.enter_context(
            ClusterHub(
                shards["s0"].uri, shards={name: shard.uri for name, shard in shards.items()}, order=order, **options
            )
        )
        yield shards, hub, writer


def subscribe(hub: ClusterHub, **options: Any) -> Subscription[MergedReading]:
    command = {"aggregate": 1, "pipeline": [{"$changeStream": options}], "cursor": {}}
    return hub.subscribe(parse_command(command, "shop", hub.dialect), latest=hub.latest(), now=datetime.now(UTC))


def take(stream: Subscription[MergedReading], count: int) -> list[Document]:
    """Poll until so many inserts have come; a write that was sent twice shows as a replacement, which is left out."""
    found: list[Document] = []
    deadline = time.monotonic() + _PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} events; {stream.own.merge.backlogs}"
        found += inserts(stream)
        time.sleep(0.005)
    return found


def inserts(stream: Subscription[MergedReading]) -> list[Document]:
    """What has come by now."""
    return [event for event in map(bson.decode, (each.raw for each in stream.poll().events)) if _is_insert(event)]


def _is_insert(event: Document) -> bool:
    return event["operationType"] == "insert"


def keys(events: list[Document]) -> list[str]:
    return [event["documentKey"]["_id"] for event in events]


def from_servers(shards: dict[str, ReplicaSet], since: Timestamp) -> list[Document]:
    """What the shards' own streams give, sorted by token."""
    found: list[Document] = []
    for shard in shards.values():
        with (
            shard.client() as client,
            client.shop.watch(start_at_operation_time=since, max_await_time_ms=300) as stream,
        ):
            while (event := stream.try_next()) is not None:
                found.append(event)
    return sorted(filter(_is_insert, found), key=lambda event: ResumeToken.parse(event["_id"]).key)


def test_a_restarted_shard_that_forgot_the_time_writes_behind_what_was_given(
    start_mongodb: Callable[..., ReplicaSet],
) -> None:
    """What a node was told lives in its memory; only what it wrote binds it."""
    with two_shards(start_mongodb, 1) as (shards, hub, writer):
        stream = subscribe(hub)
        writer.jump("s0", _FROM_THE_FUTURE)
        writer.insert("s0", "from the future")
        events = take(stream, 1)
        node = shards["s1"].nodes[0]
        node.kill()
        node.restart()
        with shards["s1"].client() as alone:
            alone.shop.orders.insert_one({"_id": "after the restart"})
        events += take(stream, 1)
        assert keys(events) == ["from the future", "after the restart"]
        assert events[0]["clusterTime"] < events[1]["clusterTime"]
        assert events == from_servers(shards, events[0]["clusterTime"])


def test_an_idle_cluster_writes_no_notes(start_mongodb: Callable[..., ReplicaSet]) -> None:
    with two_shards(start_mongodb, 1) as (shards, hub, writer):
        stream = subscribe(hub)
        writer.insert("s0", "a")
        assert keys(take(stream, 1)) == ["a"]
        before = [shard.oplog_bounds()[1] for shard in shards.values()]
        for _ in range(50):
            assert not stream.poll().events
            time.sleep(0.01)
        notes = [len(shard.oplog(after)) for shard, after in zip(shards.values(), before, strict=True)]
        assert sum(notes) <= 2


def test_a_shard_that_always_has_further_to_go_is_not_stalled(
    start_mongodb: Callable[..., ReplicaSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was called stalled as soon as others had been busy for two seconds."""
    monkeypatch.setattr("tailrace.cluster.shard._STALLED_AFTER", 0.0)
    with two_shards(start_mongodb, 1) as (_, hub, _):
        idle = hub.hub("s1")
        waited, deadline = 0.0, time.monotonic() + _PATIENCE
        while waited <= (waited := hub.stalled.get("s1", 0.0)):
            assert time.monotonic() < deadline
            hub.advance_to(idle.reached + (1 << 32))
            time.sleep(0.001)


@pytest.mark.long
def test_the_order_holds_while_members_lag_step_down_and_restart(start_mongodb: Callable[..., ReplicaSet]) -> None:
    with two_shards(start_mongodb, 3) as (shards, hub, writer):
        stream, other = subscribe(hub), shards["s1"]
        numbers = iter(range(10_000))

        def write(*names: str) -> None:
            for name in names * 5:
                writer.insert(name, f"{next(numbers)} on {name}")

        write("s0", "s1", "s0")
        lagging = other.secondaries[0]
        lagging.pause()
        write("s0", "s1", "s0", "s0")
        events = take(stream, len(writer.written))
        other.step_down(5)  # the paused member knows nothing of the last notes, and may vote again now
        lagging.resume()
        write("s0", "s1")
        old = other.primary
        old.kill()
        write("s0")
        old.restart()
        write("s1", "s0")
        events += take(stream, len(writer.written) - len(events))

        both = other.secondaries
        for node in both:
            node.pause()
        write("s0")
        deadline = time.monotonic() + _PATIENCE
        while "s1" not in hub.stalled:  # its primary answers, but no majority has what it writes
            assert time.monotonic() < deadline
            events += inserts(stream)
            time.sleep(0.05)
        assert len(events) < len(writer.written)
        for node in both:
            node.resume()
        write("s1", "s0")
        events += take(stream, len(writer.written) - len(events))
        assert keys(events) == writer.written
        assert [event["_id"] for event in events] == [
            event["_id"] for event in from_servers(shards, events[0]["clusterTime"])
        ]
        assert not hub.stalled
