"""Features in a Redis Cluster: equal to a recomputation while slots move, and what a failover loses is noticed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from feature_changes import delete, every_kind, moment, put, version
from feature_recomputation import recomputed
from redis_clusters import RedisCluster
from tailrace.dashboard.sources.features import FeaturesSource
from tailrace.errors import FeaturesLost, SettingsError
from tailrace.features import FeatureStore, read
from tailrace.features.keys import KeyNames
from tailrace.features.progress import Progress, ProgressStore
from tailrace.features.store import Change
from tailrace.owned import OwnedThread
from tailrace.redis_access import connect
from tailrace.stand import Redis
from waiting import SECONDS

NOON = 1_780_000_000_000
USERS = ["u1", "", "}", "{", "{}", "~.", "a}b{c", 5]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as running:
        yield running


def changes(documents: dict[int, dict[str, Any]], numbers: range, chance: random.Random) -> list[Change]:
    made = []
    for number in numbers:
        key = chance.randrange(60)
        if key in documents and chance.random() < 0.2:
            del documents[key]
            made.append(delete(number, key))
            continue
        documents[key] = {
            "_id": key,
            "user": chance.choice(USERS),
            "at": moment(NOON - chance.randrange(4_000_000)),
            "amount": float(chance.randrange(100)),
            "merchant": f"m{chance.randrange(9)}",
        }
        made.append(put(number, documents[key]))
    return made


def assert_recomputed(client: Any, name: str, documents: dict[int, dict[str, Any]]) -> None:
    for user in USERS:
        mine = [document for document in documents.values() if document["user"] == user]
        found = dict(read(client, user, name, at=NOON / 1000).values)
        expected = recomputed(every_kind(), mine, NOON)
        assert found == {key: pytest.approx(value) for key, value in expected.items()}, user


def test_no_two_names_are_one_and_each_leads_back_to_its_document() -> None:
    names, texts = KeyNames("x", is_cluster=True), ["", "~.", "~.~.", "}", "}}", "{", "{}", "a", "~a", "{a}"]
    assert len({names.document(text) for text in texts}) == len(texts)
    assert [names.document_id(names.document(text)) for text in texts] == texts


def test_features_equal_a_recomputation_and_a_drop_is_complete(cluster: RedisCluster) -> None:
    documents: dict[int, dict[str, Any]] = {}
    with connect(cluster.url) as client:
        store = FeatureStore(client, every_kind("spread"), clock=lambda: NOON / 1000)
        store.begin()
        for begin in range(1, 300, 50):
            batch = changes(documents, range(begin, begin + 50), random.Random(begin))
            store.apply(batch)
            store.apply(batch[::3])
        assert_recomputed(client, "spread", documents)
        store.end_before(version(1_000), NOON // 1000)
        assert_recomputed(client, "spread", {})
    source = FeaturesSource(cluster.url)
    assert "spread" in {one.definition.name for one in source.poll()}
    source.close()


def test_nothing_is_wrong_while_slots_move(cluster: RedisCluster) -> None:
    """Slots go to and fro between two servers; updates of entities on their way wait for them."""
    first, second, _ = cluster.nodes
    documents: dict[int, dict[str, Any]] = {}
    with connect(cluster.url) as client:
        store = FeatureStore(client, every_kind("moving"), clock=lambda: NOON / 1000)
        store.begin()
        store.apply(changes(documents, range(1, 100), random.Random(0)))
        slot = client.keyslot(KeyNames("moving", is_cluster=True).entity("u1"))
        owner = next(node for node in cluster.nodes if node.port == client.get_node_from_key("moving:{u1}").port)
        target = second if owner is not second else first
        _begin_move(cluster, slot, owner, target)
        half = client.execute_command("CLUSTER GETKEYSINSLOT", slot, 3, target_nodes=_node(client, owner))
        cluster.ask(owner, "MIGRATE", "127.0.0.1", str(target.port), "", "0", "5000", "KEYS", *half)
        applying = OwnedThread(
            lambda: store.apply(changes(documents, range(100, 300), random.Random(1))), name="applying"
        )
        applying.start()
        time.sleep(1.0)
        assert applying.is_alive, "an entity that is on its way was changed"
        _end_move(cluster, slot, owner, target)
        applying.join(SECONDS)
        assert_recomputed(client, "moving", documents)
        mover = OwnedThread(lambda: cluster.reshard(target, owner, 300), name="resharding")
        mover.start()
        for begin in range(300, 900, 100):
            store.apply(changes(documents, range(begin, begin + 100), random.Random(begin)))
        mover.join(SECONDS)
        assert_recomputed(client, "moving", documents)


def test_a_drop_waits_until_slots_stand_still(cluster: RedisCluster) -> None:
    first, second, _ = cluster.nodes
    documents: dict[int, dict[str, Any]] = {}
    with connect(cluster.url) as client:
        store = FeatureStore(client, every_kind("dropped"), clock=lambda: NOON / 1000)
        store.begin()
        store.apply(changes(documents, range(1, 200), random.Random(3)))
        slot = next(slot for slot in range(16_384) if client.nodes_manager.get_node_from_slot(slot).port == first.port)
        _begin_move(cluster, slot, first, second)
        dropping = OwnedThread(lambda: store.end_before(version(1_000), NOON // 1000), name="dropping")
        dropping.start()
        time.sleep(1.0)
        assert dropping.is_alive
        _end_move(cluster, slot, first, second)
        dropping.join(SECONDS)
        assert_recomputed(client, "dropped", {})


def test_a_url_of_the_wrong_kind_is_named(cluster: RedisCluster, redis_server: Redis) -> None:
    with connect(cluster.url) as client:
        node = client.get_node_from_key("wrong:definition")
    elsewhere = next(each for each in cluster.nodes if each.port != node.port)
    store = FeatureStore.connect(elsewhere.url, every_kind("wrong"))
    with pytest.raises(SettingsError, match="node of a Redis Cluster"):
        store.begin()
    with pytest.raises(SettingsError, match="not part of a cluster"):
        connect(redis_server.url.replace("redis://", "redis+cluster://"))


@pytest.mark.long
def test_what_a_failover_loses_is_noticed() -> None:
    """A replica that lacks the last writes of its primary takes over; all other servers have theirs."""
    with RedisCluster(primaries=3, replicas=1) as cluster, connect(cluster.url) as client:
        progress = ProgressStore(client, "fragile")
        for batch in range(3):
            progress.save(Progress(batch, "82", 1))
        progress.check(3)
        primaries = [node for node in cluster.nodes if "role:master" in cluster.ask(node, "INFO", "replication")]
        replicas = [node for node in cluster.nodes if node not in primaries]
        holder = client.get_node_from_key("fragile:progress").port
        lost = next(node for node in primaries if node.port != holder)
        mine = next(node for node in replicas if f"master_port:{lost.port}" in cluster.ask(node, "INFO", "replication"))
        mine.pause()
        cluster.ask(lost, "CLIENT", "KILL", "TYPE", "replica")
        progress.save(Progress(3, "82", 2))
        progress.check(4)

        def fail_over() -> None:
            lost.kill()
            mine.resume()
            deadline = time.monotonic() + 60
            while "role:master" not in cluster.ask(mine, "INFO", "replication") and time.monotonic() < deadline:
                time.sleep(0.2)

        done: list[int] = []

        def work() -> None:
            if not done:
                fail_over()
            done.append(1)
            progress.check(4)

        with pytest.raises(FeaturesLost, match="batch 4 comes next, and Redis knows of batch 2"):
            progress.undisturbed(work)


def _begin_move(cluster: RedisCluster, slot: int, source: Redis, target: Redis) -> None:
    cluster.ask(target, "CLUSTER", "SETSLOT", str(slot), "IMPORTING", cluster.ask(source, "CLUSTER", "MYID"))
    cluster.ask(source, "CLUSTER", "SETSLOT", str(slot), "MIGRATING", cluster.ask(target, "CLUSTER", "MYID"))


def _end_move(cluster: RedisCluster, slot: int, source: Redis, target: Redis) -> None:
    """Move what is left of a slot, and give it to the target."""
    while keys := cluster.ask(source, "CLUSTER", "GETKEYSINSLOT", str(slot), "100").splitlines():
        cluster.ask(source, "MIGRATE", "127.0.0.1", str(target.port), "", "0", "5000", "KEYS", *keys)
    for node in (target, source, *(node for node in cluster.nodes if node not in (target, source))):
        cluster.ask(node, "CLUSTER", "SETSLOT", str(slot), "NODE", cluster.ask(target, "CLUSTER", "MYID"))


def _node(client: redis.RedisCluster, server: Redis) -> Any:
    return client.get_node(host="127.0.0.1", port=server.port)
