"""Growth: what happens to the cost when documents, watchers, shards, the oplog or the state get larger, and a fit.

python -m bench.growth [--mode quick] [--only REGEX]

A cost per event that does not depend on the size grows with the power 0; one that is proportional to it with 1.
"""

from __future__ import annotations

import random

from bson import Timestamp

from bench.accounting import Meter
from bench.contestant import Contestant, python_job
from bench.drain import ON_GATEWAY, ON_SERVER
from bench.feature_set import REDIS_OPTIONS
from bench.scenario import Scenario, main
from bench.watchers import Watchers
from bench.workload import SEED, Client, document, load
from tailrace.stand import Redis, ReplicaSet, ShardedCluster

NAME = "growth"
TITLE = "how cost grows with documents, watchers, shards, history and state"
SIZES = {
    "tiny": {
        "rounds": 1, "document_bytes": [300, 4_096, 65_536], "megabytes": 1, "watchers": [1, 2, 4], "seconds": 1,
        "shards": [1, 2], "shard_events": 1_000, "oplog": [500, 1_000, 2_000], "users": [100, 300, 900],
        "state_events": 200,
    },
    "quick": {
        "document_bytes": [300, 4_096, 65_536, 1_000_000], "megabytes": 12, "watchers": [1, 20, 100], "seconds": 1,
        "shards": [1, 2, 3], "shard_events": 15_000, "oplog": [5_000, 20_000, 80_000], "users": [1_000, 5_000, 20_000],
        "state_events": 2_000,
    },
    "full": {
        "document_bytes": [300, 4_096, 65_536, 1_000_000], "megabytes": 60, "watchers": [1, 10, 50, 200, 500],
        "seconds": 3, "shards": [1, 2, 3], "shard_events": 50_000, "oplog": [10_000, 100_000, 500_000, 2_000_000],
        "users": [1_000, 10_000, 100_000, 1_000_000], "state_events": 5_000,
    },
}  # fmt: skip
RAW, BATCHES, ENGINE, PYMONGO = "raw getMore loop", "driver batches()", "engine", "pymongo watch()"
CLUSTER, STATE = "gateway over shards", "feature state"
_TARGETS = {RAW: "RawLoop", BATCHES: "driver_batches", ENGINE: "engine", PYMONGO: "pymongo_watch"}


def body(scenario: Scenario) -> None:
    """One axis after the other."""
    scenario.lines = [
        ("document bytes", "tool_us"),
        ("document bytes", "mongod_us"),
        ("watchers", "mongod_us"),
        ("shards", "tool_us"),
        ("events in the oplog", "tool_us"),
        ("events in the oplog", "peak_mb"),
        ("users in the state", "tool_us"),
        ("users in the state", "redis_us"),
    ]
    with ReplicaSet.start(oplog_mb=4_000) as replica_set, replica_set.client() as client:
        for part in (document_sizes, history, watchers):
            scenario.attempt(part, replica_set, client)
    scenario.attempt(state)
    scenario.attempt(shards)


def readers(uri: str, start: Timestamp, events: int, names: tuple[str, ...]) -> list[Contestant]:
    """Those who read so many events from a time on."""
    given = {"uri": uri, "start": [start.time, start.inc], "events": events}
    return [
        python_job(name, f"bench.drain_jobs:{_TARGETS[name]}", given, warm_ups=int(name == RAW), peer=name == PYMONGO)
        for name in names
    ]


def document_sizes(scenario: Scenario, replica_set: ReplicaSet, client: Client) -> None:
    """The same megabytes in documents of several sizes."""
    meter = Meter({"mongod": [replica_set.primary.pid]}, client)
    for size in scenario["document_bytes"]:
        events = max(20, min(scenario["megabytes"] * 1_000_000 // size, 40_000))
        start = load(client, events, size=size)
        made = readers(replica_set.uri, start, events, (RAW, BATCHES, ENGINE, PYMONGO))
        with scenario.contestants(made, group="document bytes") as started:
            scenario.interleave(started, meter, group="document bytes", x=size)


def history(scenario: Scenario, replica_set: ReplicaSet, client: Client) -> None:
    """More and more of one oplog: what an event costs, and what is held in memory."""
    meter = Meter({"mongod": [replica_set.primary.pid]}, client)
    starts: dict[int, Timestamp] = {}
    lengths = sorted(scenario["oplog"], reverse=True)
    for length, shorter in zip(lengths, [*lengths[1:], 0], strict=True):
        starts[length] = load(client, length - shorter, is_mixed=False)
    for length in reversed(lengths):
        made = readers(replica_set.uri, starts[length], length, (BATCHES, ENGINE))
        with scenario.contestants(made, group="events in the oplog") as started:
            scenario.interleave(started, meter, group="events in the oplog", x=length)


def watchers(scenario: Scenario, replica_set: ReplicaSet, client: Client) -> None:
    """Watchers on the server and on a gateway, with a writer at full speed."""
    client.bench.create_collection("watched")
    for count in scenario["watchers"]:
        sides = [
            Watchers(name, replica_set, count, scenario["seconds"], by_gateway=name == ON_GATEWAY)
            for name in (ON_SERVER, ON_GATEWAY)
        ]
        with scenario.contestants(sides, group="watchers") as started:
            scenario.interleave(started, Meter({}), group="watchers", x=count)


def shards(scenario: Scenario) -> None:
    """One stream merged from several shards."""
    if not scenario.wants(CLUSTER):
        return
    for count in scenario["shards"]:
        with ShardedCluster.start(shards=count, oplog_mb=990) as cluster:
            cluster.create_database("bench")
            start = fill_shards(cluster, scenario["shard_events"])
            given = {
                "uri": cluster.config.uri,
                "start": [start.time, start.inc],
                "events": scenario["shard_events"],
            }
            job = python_job(CLUSTER, "bench.drain_jobs:GatewayLoop", given, warm_ups=1)
            meter = Meter({"mongod": [shard.primary.pid for shard in cluster.shards.values()]})
            with scenario.contestants([job], group="shards") as started:
                scenario.interleave(started, meter, group="shards", x=count)


def fill_shards(cluster: ShardedCluster, events: int) -> Timestamp:
    """Insert documents into the shards in turn, their clocks kept together as a router does; gives the time before."""
    rng = random.Random(SEED)
    names = list(cluster.shards)
    for name in names:
        cluster.run_on(name, {"create": "orders"}, "bench")
    before = cluster.cluster_time
    for number, first in enumerate(range(0, events, 500)):
        documents = [document(rng) for _ in range(min(500, events - first))]
        cluster.run_on(names[number % len(names)], {"insert": "orders", "documents": documents}, "bench")
    return Timestamp(before.time, before.inc + 1)


def state(scenario: Scenario) -> None:
    """Features of more and more users in one Redis: what one more event costs."""
    if not scenario.wants(STATE):
        return
    with Redis.start(REDIS_OPTIONS) as server:
        meter = Meter({"redis": [server.pid]})
        before = 0
        for users in scenario["users"]:
            given = {"url": server.url, "before": before, "users": users, "events": scenario["state_events"]}
            job = python_job(STATE, "bench.state_jobs:StateJob", given, seconds_to_start=1_200.0)
            with scenario.contestants([job], group="users in the state") as started:
                scenario.interleave(started, meter, group="users in the state", x=users)
            before = users


if __name__ == "__main__":
    main(NAME, TITLE, SIZES, body)
