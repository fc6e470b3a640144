"""Sharded clusters: each shard is proved beside its own stream, which serves what the engine may not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import bson
import pytest
from bson import MaxKey
from pymongo import MongoClient
from typer.testing import CliRunner

from tailrace.capture.source.cluster import ClusterStream
from tailrace.capture.source.proving import SAMPLE, ProofOptions, ProvingSource, Side
from tailrace.capture.source.source import ClusterAccess, Selection, Start
from tailrace.cli.app import app
from tailrace.errors import ChangeStreamError, HistoryLost, StreamRefused
from tailrace.event import EventStream
from tailrace.hub import Subscription
from tailrace.owned import OwnedThread
from tailrace.proof import TrustLedger
from tailrace.stand import ShardedCluster

NAMESPACE = "shop.orders"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedCluster]:
    with ShardedCluster.start("6.0.5", shards=2, folder=tmp_path_factory.mktemp("sharded")) as cluster:
        cluster.create_database("shop")
        cluster.shard_collection(NAMESPACE, {"user": 1})
        cluster.move_range(NAMESPACE, "s1", min={"user": 10}, max={"user": MaxKey()})
        yield cluster


def write(cluster: ShardedCluster, is_over: Callable[[], bool]) -> None:
    for number in range(200_000, 300_000):
        cluster.insert(NAMESPACE, {"_id": number, "user": number % 20})
        cluster.update(NAMESPACE, {"_id": number, "user": number % 20}, {"$set": {"paid": True}})
        if is_over():
            return


def test_prove_compares_each_shard_with_its_own_stream(cluster: ShardedCluster) -> None:
    ended: list[bool] = []
    writer = OwnedThread(lambda: write(cluster, lambda: bool(ended)), name="writer")
    writer.start()
    try:
        arguments = ["engine", "prove", "--uri", cluster.config.uri, "--minutes", "0.1", "--json"]
        found = CliRunner().invoke(app, arguments)
    finally:
        ended.append(True)
        writer.join()
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout[found.stdout.index("{") :])
    assert report["different"] == 0
    assert {each["kind"] for each in report["kinds"]} >= {"insert/sharded", "update/sharded"}
    sharded = sum(each["identical"] for each in report["kinds"] if each["kind"] == "insert/sharded")
    assert sharded > 5


def unknown_source(
    cluster: ShardedCluster, client: MongoClient[Any], ledger: TrustLedger, order: str = "strict", **options: Any
) -> ProvingSource:
    """Give the source of a cluster that pretends to be of a release which nobody compared."""

    def make(server: str, presumes: bool) -> TrustLedger:
        assert presumes, "6.0.5 itself was compared"
        return ledger

    selection = Selection(max_await_ms=200, **options)
    return ProvingSource(client, selection, ClusterAccess(cluster.config.uri, order=order), make, ProofOptions(20, 0))


def read(stream: EventStream, count: int, is_over: Callable[[], bool]) -> tuple[list[bytes], bytes]:
    """Give so many events and the position behind them; what comes until it is over is read too."""
    found: list[bytes] = []
    for batch in stream.batches():
        found += batch.events
        if len(found) >= count and batch.token is not None and is_over():
            return found, batch.token
    raise AssertionError("the stream ended")


class Reader:
    """Writes to an unknown cluster and reads its stream, opened anew for each round, as after a restart."""

    def __init__(self, cluster: ShardedCluster, source: ProvingSource, first: int) -> None:
        self.sides: list[Side] = []
        source._on_side = self.sides.append
        self._cluster = cluster
        self._source = source
        self._next = first
        self._position, _ = source.now()
        self.expected: list[tuple[str, int]] = []
        self.events: list[dict[str, Any]] = []

    def read_round(self, *, updates: bool = False, is_over: Callable[[], bool] = lambda: True) -> None:
        stream = self._source.open(Start(self._position))
        try:
            written = [self._insert(user) for user in (*range(20), *range(20), *range(20))]
            if updates:
                for _, number in list(written):
                    self._cluster.update(NAMESPACE, {"_id": number, "user": number % 20}, {"$set": {"paid": True}})
                    written.append(("update", number))
            found, self._position = read(stream, len(written), is_over)
        finally:
            stream.close()
        self.expected += written
        self.events += map(bson.decode, found)

    def _insert(self, user: int) -> tuple[str, int]:
        number = self._next - self._next % 20 + user
        self._next = number + 1
        self._cluster.insert(NAMESPACE, {"_id": number, "user": user})
        return "insert", number


def test_a_cluster_that_nobody_compared_is_served_by_its_shards_until_the_engine_is_proved(
    cluster: ShardedCluster,
) -> None:
    """At either switch, and over restarts in between, every write is there once, and each shard's in its order."""
    with cluster.config.client() as client:
        for order, first in (("strict", 0), ("per-key", 100_000)):
            ledger = TrustLedger("8.9.28", 20)
            reader = Reader(cluster, unknown_source(cluster, client, ledger, order), first)
            sides = reader.sides
            reader.read_round(is_over=lambda sides=sides: Side.ENGINE in sides)
            assert sides[0] is Side.SERVER
            reader.read_round()
            trusted = len(sides)
            reader.read_round(updates=True)
            assert Side.SERVER in sides[trusted:], "updates, a new kind, came from the shards"
            check_round(reader, order)
            assert not ledger.has_doubts


def check_round(reader: Reader, order: str) -> None:
    found = [(each["operationType"], each["documentKey"]["_id"]) for each in reader.events]
    assert sorted(found) == sorted(reader.expected)
    for shard in (range(10), range(10, 20)):
        mine = [each["_id"]["_data"] for each in reader.events if each["documentKey"]["user"] in shard]
        assert mine == sorted(mine)
    if order == "strict":
        tokens = [each["_id"]["_data"] for each in reader.events]
        assert tokens == sorted(tokens)


@pytest.mark.long
def test_samples_of_each_shard_end_what_a_wrong_engine_serves(
    cluster: ShardedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a known release: first with a right engine, then with one whose events are wrong, of which none comes out.

    `make cluster` runs it.
    """
    with cluster.config.client() as client:
        ledger = TrustLedger("6.0.5", 20, presumes=True)
        source = unknown_source(cluster, client, ledger)
        source._options = ProofOptions(20, sample_one_in=1)
        position, _ = source.now()
        numbers = iter(range(400_000, 500_000))

        def insert(count: int) -> list[int]:
            found = [next(numbers) for _ in range(count)]
            for number in found:
                cluster.insert(NAMESPACE, {"_id": number, "user": number % 20})
            return found

        written = insert(3 * SAMPLE)
        stream = source.open(Start(position))
        found, position = read(stream, len(written), lambda: True)
        stream.close()
        assert numbers_of(found) == written
        assert sum(record.identical for record in ledger.kinds().values()) >= SAMPLE
        assert not ledger.has_doubts

        make = Subscription.poll

        def poll(self: Any, *arguments: Any) -> Any:
            batch = make(self, *arguments)
            batch.events[:] = [event._replace(raw=event.raw.replace(b"orders", b"ORDERS")) for event in batch.events]
            return batch

        monkeypatch.setattr(Subscription, "poll", poll)
        written = insert(3 * SAMPLE)
        stream = source.open(Start(position))
        with pytest.raises(ChangeStreamError, match="goes on with what the shards give"):
            read(stream, len(written), lambda: True)
        stream.close()
        assert ledger.has_doubts
        stream = source.open(Start(position))
        found, position = read(stream, len(written), lambda: True)
        stream.close()
        assert numbers_of(found) == written
        assert {bson.decode(event)["ns"]["coll"] for event in found} == {"orders"}


def numbers_of(events: list[bytes]) -> list[int]:
    return [bson.decode(event)["documentKey"]["_id"] for event in events]


def test_what_an_unknown_cluster_cannot_give_is_refused_and_a_shard_that_joined_unseen_is_lost_history(
    cluster: ShardedCluster,
) -> None:
    with cluster.config.client() as client:
        source = unknown_source(cluster, client, TrustLedger("8.9.28", 5), full_document="updateLookup")
        with pytest.raises(StreamRefused, match=r"a MongoDB 8\.9\.28 cluster") as raised:
            source.open(Start())
        assert "whenAvailable" in raised.value.hint

        stream = unknown_source(cluster, client, TrustLedger("8.9.28", 5)).open(Start())
        assert isinstance(stream, ClusterStream)
        hub = stream._hub
        batches = stream.batches()
        next(batches)
        listed = {"s0", "s1", "s9"}
        hub._check_listed(listed, hub.latest())
        cluster.insert(NAMESPACE, {"_id": -1, "user": 1})
        next(batch for batch in batches if batch.events)
        hub._check_listed(listed, hub.latest())
        with pytest.raises(HistoryLost, match="shard s9 was added"):
            next(batches)
        stream.close()
