"""A gateway before a sharded cluster that it was never compared with: its shards serve until the engine is trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bson import MaxKey
from pymongo.errors import OperationFailure

from gateway.running_gateway import RunningGateway
from hiding_proxy import HidingProxy
from replica_sets import skip_unless_it_runs
from tailrace.cluster import ClusterHub
from tailrace.cluster.topology import Shard
from tailrace.settings import EngineSettings
from tailrace.stand import ShardedCluster
from waiting import wait_until

NAMESPACE = "shop.orders"
MADE_UP = {"6.0.27": "6.3.27", "7.0.28": "8.9.28"}


@pytest.fixture(scope="module", params=["6.0.27", pytest.param("7.0.28", marks=pytest.mark.long)])
def cluster(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedCluster]:
    """`make cluster` has that of 7.0.28 too."""
    skip_unless_it_runs(request.param)
    with ShardedCluster.start(request.param, shards=2, folder=tmp_path_factory.mktemp("sharded")) as cluster:
        cluster.create_database("shop")
        cluster.shard_collection(NAMESPACE, {"user": 1})
        cluster.move_range(NAMESPACE, "s1", min={"user": 10}, max={"user": MaxKey()})
        yield cluster


class Hidden:
    """A gateway before the cluster under a made-up version."""

    def __init__(self, cluster: ShardedCluster, folder: Path, opened: ExitStack) -> None:
        def hide(port: int) -> HidingProxy:
            return opened.enter_context(HidingProxy(port, cluster.version, MADE_UP[cluster.version]))

        self.shards = {name: hide(shard.primary.port) for name, shard in cluster.shards.items()}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Shard, "uri", lambda shard, _: self.shards[shard.name].uri)
            engine = EngineSettings(matches=5, folder=folder)
            self.running = RunningGateway(hide(cluster.config.primary.port).uri, engine=engine)
        opened.callback(self.running.close)


@pytest.fixture
def hidden(cluster: ShardedCluster, tmp_path: Path) -> Iterator[Hidden]:
    with ExitStack() as opened:
        yield Hidden(cluster, tmp_path / "engine", opened)


class Orders:
    """Inserts one order after another, on each shard in turn, and sometimes changes the last one."""

    def __init__(self, cluster: ShardedCluster, first: int = 0) -> None:
        self._cluster = cluster
        self._first = first
        self.done: list[tuple[str, int]] = []

    def insert(self) -> None:
        number = self._first + len(self.done)
        self._cluster.insert(NAMESPACE, {"_id": number, "user": number * 7 % 20})
        self.done.append(("insert", number))

    def update(self) -> None:
        number = next(number for operation, number in reversed(self.done) if operation == "insert")
        key = {"_id": number, "user": number * 7 % 20}
        self._cluster.update(NAMESPACE, key, {"$set": {"paid": True}})
        self.done.append(("update", number))


def test_shards_serve_until_the_engine_is_trusted_and_again_before_what_is_not(cluster, hidden):
    """Every change comes once and in the order of tokens, while the stream goes over to the engine and back.

    Connections to the shards break while these serve, and while the engine does.
    """
    gateway = hidden.running
    orders, served = Orders(cluster), gateway.gateway.counts
    found: list[dict] = []

    def sides() -> list[bool]:
        return [cursor.spec.served_by_shards for cursor in gateway.gateway.cursors]

    with gateway.client() as client, client.shop.orders.watch(max_await_time_ms=100) as stream:

        def follow(*, until: Callable[[], bool]) -> None:
            def work() -> None:
                orders.insert()
                read()

            for shard in hidden.shards.values():
                shard.cut()
            wait_until(until, "the stream never goes over", work=work)

        def read() -> None:
            while (event := stream.try_next()) is not None:
                found.append(event)

        assert served.left_to_upstream == 1
        assert sides() == [True]
        follow(until=lambda: sides() == [False])
        assert gateway.proof.is_serving
        hidden.shards["s1"].cut()
        orders.insert()
        orders.update()  # of a kind that nobody has compared
        wait_until(lambda: len(found) == len(orders.done), "the stream does not go on", work=read)
        assert served.left_to_upstream == 2, "the driver resumed, and the shards go on with it"
        follow(until=lambda: sides() == [False])
        wait_until(lambda: len(found) == len(orders.done), "the stream does not go on", work=read)
        assert [(event["operationType"], event["documentKey"]["_id"]) for event in found] == orders.done
        tokens = [event["_id"]["_data"] for event in found]
        assert tokens == sorted(set(tokens))

        check_what_shards_serve(client, found)


@pytest.mark.long
def test_samples_are_taken_of_each_shard_of_a_known_release(cluster, tmp_path):
    """`make cluster` runs it."""
    uris = {name: shard.uri for name, shard in cluster.shards.items()}
    engine = EngineSettings(sample_one_in=1, folder=tmp_path / "engine")
    hub = ClusterHub(cluster.config.uri, shards=uris, unproved=True)
    running = RunningGateway(cluster.config.uri, hub=hub, engine=engine)
    try:
        assert running.proof.is_serving, "from the start"
        orders = Orders(cluster, first=1_000_000)
        compared = lambda: running.proof.counts().get(("insert/sharded", "identical"), 0)  # noqa: E731
        wait_until(lambda: compared() >= 5, "no sample is taken", work=orders.insert)
    finally:
        running.close()


def check_what_shards_serve(client, found: list[dict]) -> None:
    """Streams with stages and rarer options come from the shards, from any token; looked-up documents do not."""
    behind = [event for event in found[4:] if event["documentKey"]["_id"] % 2]
    stages = [{"$match": {"$expr": {"$eq": [{"$mod": ["$documentKey._id", 2]}, 1]}}}]
    options = {"resume_after": found[3]["_id"], "show_expanded_events": True}
    with client.shop.orders.watch(stages, **options) as odd:
        seen = [next(odd) for _ in behind]
    assert [event["_id"] for event in seen] == [event["_id"] for event in behind]
    with pytest.raises(OperationFailure, match="needs a mongos") as refused:
        client.shop.orders.watch(full_document="updateLookup")
    assert refused.value.code == 115
