"""Sharded clusters: each shard is proved beside its own stream; one of a release that nobody compared is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from bson import MaxKey
from typer.testing import CliRunner

from tailrace.capture.source.proving import ProofOptions
from tailrace.capture.source.proving_source import ProvingSource
from tailrace.capture.source.source import ClusterAccess, Selection, Start
from tailrace.cli.app import app
from tailrace.errors import StreamRefused
from tailrace.owned import OwnedThread
from tailrace.proof import TrustLedger
from tailrace.stand import ShardedCluster

NAMESPACE = "shop.orders"


@pytest.fixture
def cluster(start_sharded: Callable[..., ShardedCluster]) -> ShardedCluster:
    cluster = start_sharded("6.0.5", shards=2)
    cluster.create_database("shop")
    cluster.shard_collection(NAMESPACE, {"user": 1})
    cluster.move_range(NAMESPACE, "s1", min={"user": 10}, max={"user": MaxKey()})
    return cluster


def write(cluster: ShardedCluster, is_over: Callable[[], bool]) -> None:
    for number in range(100_000):
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


def test_a_cluster_that_nobody_compared_is_refused_and_told_why(cluster: ShardedCluster) -> None:
    """Events that stay with the server would have to come from a mongos, and none could be had to compare."""

    def unknown(server: str, presumes: bool) -> TrustLedger:
        assert presumes, "6.0.5 itself was compared"
        return TrustLedger("8.9.28", 5)

    with cluster.config.client() as client:
        access = ClusterAccess(cluster.config.uri)
        source = ProvingSource(client, Selection(), access, unknown, ProofOptions())
        with pytest.raises(StreamRefused, match=r"a sharded MongoDB 8\.9\.28") as raised:
            source.open(Start())
    assert "engine prove" in raised.value.hint
