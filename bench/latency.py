"""Latency at a steady 500 writes a second: insert to watcher, to Kafka consumer, to Redis feature, to Iceberg row.

python -m bench.latency [--mode quick] [--only REGEX]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.accounting import Meter
from bench.contestant import Contestant, ProcessContestant, Unavailable, command_of
from bench.feature_set import REDIS_OPTIONS
from bench.hops import (
    FEATURE_KEYS,
    NAIVE_KEYS,
    ConnectHop,
    Hop,
    IcebergHop,
    KafkaHop,
    Load,
    RedisHop,
    samples_of,
)
from bench.kafka import AS_JSON, AS_TEXT
from bench.peers import DEBEZIUM, MONGO_KAFKA
from bench.peers.connect import ConnectWorker
from bench.peers.recipes import DEBEZIUM_PROMPT, debezium_engine, debezium_settings, mongo_settings, mongo_task
from bench.scenario import Claim, Goal, Scenario, main
from bench.workload import Client
from tailrace.errors import TailraceError
from tailrace.stand import Kafka, Redis, ReplicaSet

NAME = "latency"
TITLE = "from the start of an insert to where it arrives, at a steady rate of writes"
SIZES = {
    "tiny": {"rate": 100, "documents": 60, "rounds": 1},
    "quick": {"rate": 500, "documents": 750},
    "full": {"rate": 500, "documents": 2_500},
}
WATCHER, KAFKA, REDIS, ICEBERG = "to watcher", "to Kafka consumer", "to Redis feature", "to Iceberg row"
BOTH_REDIS, BOTH_ICEBERG = "to Redis feature, both jobs running", "to Iceberg row, both jobs running"
PYMONGO, DRIVER, ENGINE, GATEWAY = "pymongo watch()", "driver", "engine", "gateway"
DEBEZIUM_SLOW, DEBEZIUM_FAST = "Debezium engine", "Debezium engine, poll.interval.ms=10"
MONGO = "MongoDB Kafka connector task"
JSON, EXACTLY_ONCE, OPLOG, NAIVE = (
    "producer, json",
    "producer, json, exactly-once",
    "producer, json, oplog",
    "naive loop",
)
CONNECT_SLOW, CONNECT_FAST = "Debezium in Kafka Connect", "Debezium in Kafka Connect, poll.interval.ms=10"
CONNECT_MONGO = "MongoDB Kafka connector in Kafka Connect"
FEATURES, WAREHOUSE = "tailrace features", "tailrace warehouse"
ONLY_FULL = {DEBEZIUM_SLOW, CONNECT_SLOW}
"""Half a second by their own polling, so a quick run has nothing to find out about them."""

CLAIMS = [
    *(
        Claim(ours, rival, metric, group=WATCHER)
        for ours in (DRIVER, ENGINE, GATEWAY)
        for rival in (PYMONGO, DEBEZIUM_FAST, MONGO)
        for metric in ("p50_ms", "p99_ms")
    ),
    *(
        Claim(JSON, rival, metric, 1.0 if (rival, metric) == (CONNECT_MONGO, "p50_ms") else None, KAFKA)
        for rival in (CONNECT_SLOW, CONNECT_FAST, CONNECT_MONGO, NAIVE)
        for metric in ("p50_ms", "p99_ms")
    ),
    Claim(FEATURES, NAIVE, "p50_ms", group=REDIS),
]
GOALS = [
    *(
        Goal(FEATURES, metric, most, group)
        for group in (REDIS, BOTH_REDIS)
        for metric, most in (("p50_ms", 80.0), ("p99_ms", 200.0))
    ),
    *(Goal(WAREHOUSE, "p50_ms", 2_000.0, group) for group in (ICEBERG, BOTH_ICEBERG)),
    Goal(EXACTLY_ONCE, "p50_ms", 20.0, KAFKA),
    Goal(EXACTLY_ONCE, "p99_ms", 80.0, KAFKA),
]


def body(scenario: Scenario) -> None:
    """Hop after hop; one that cannot be measured does not take the others with it."""
    scenario.claims, scenario.goals = list(CLAIMS), list(GOALS)
    with ReplicaSet.start() as replica_set, replica_set.client() as client:
        client.bench.create_collection("orders")
        client.bench.create_collection("naive")
        for part in (to_watcher, to_kafka, to_redis, to_iceberg, with_both_jobs):
            scenario.attempt(part, replica_set.uri, client)
    scenario.note("no peer here has the hops to Redis and Iceberg; the naive loop to Redis keeps one counter per user")


def measure(scenario: Scenario, group: str, made: Sequence[Contestant | Unavailable]) -> None:
    """Let the contestants of a hop take turns, and keep their percentiles."""
    chosen = [one for one in made if scenario.mode == "full" or one.name not in ONLY_FULL]
    try:
        with scenario.contestants(chosen, group=group) as started:
            scenario.interleave(started, Meter({}), group=group)
    finally:
        for one, samples in samples_of([one for one in chosen if isinstance(one, Contestant)]):
            if samples:
                scenario.add_latencies(one.name, group, samples, peer=one.peer)


def job(target: str, load: Load, given: Mapping[str, Any]) -> list[str]:
    """The command line of a job."""
    return command_of(f"bench.latency_jobs:{target}", {"events": load.count, **given})


def hop(
    kind: Callable[..., Hop], name: str, target: str, load: Load, given: Mapping[str, Any], *more: Any, **options: Any
) -> Hop:
    """A hop whose program is a Python job."""
    return kind(name, job(target, load, given), load, *more, **options)


def of_program(made: ProcessContestant | Unavailable, load: Load) -> Hop | Unavailable:
    """The same program, timed as a watcher."""
    if isinstance(made, Unavailable):
        return made
    return Hop(made.name, made.command, load, peer=True, settings=made.settings, warm_ups=1)


def to_watcher(scenario: Scenario, uri: str, client: Client) -> None:
    """Programs that watch in their own process."""
    load = Load(client, scenario["documents"], scenario["rate"])
    given = {"uri": uri}
    measure(
        scenario,
        WATCHER,
        [
            hop(Hop, PYMONGO, "pymongo_watch", load, given, peer=True),
            hop(Hop, DRIVER, "driver_watch", load, given),
            hop(Hop, ENGINE, "engine_watch", load, given),
            hop(Hop, GATEWAY, "GatewayWatch", load, given),
            of_program(debezium_engine(DEBEZIUM_SLOW, "latency", uri, None, load.count), load),
            of_program(debezium_engine(DEBEZIUM_FAST, "latency", uri, None, load.count, DEBEZIUM_PROMPT), load),
            of_program(mongo_task(MONGO, "latency", uri, None, load.count), load),
        ],
    )


def to_kafka(scenario: Scenario, uri: str, client: Client) -> None:
    """Producers and connectors, seen by a consumer of their topic."""
    load = Load(client, scenario["documents"], scenario["rate"])
    with Kafka.start() as broker, ExitStack() as workers:
        servers = broker.bootstrap_servers
        given = {"uri": uri, "servers": servers}
        made: list[Contestant | Unavailable] = [
            hop(KafkaHop, name, "capture", load, {**given, "prefix": f"l{number}", **options}, servers)
            for number, (name, options) in enumerate(
                {JSON: {}, EXACTLY_ONCE: {"delivery": "exactly-once"}, OPLOG: {"source": "oplog"}}.items()
            )
        ]
        made.append(hop(KafkaHop, NAIVE, "naive_to_kafka", load, {**given, "prefix": "naive"}, servers, peer=True))
        peers = [
            (DEBEZIUM, AS_JSON, {
                CONNECT_SLOW: debezium_settings(uri, None, {}),
                CONNECT_FAST: debezium_settings(uri, None, DEBEZIUM_PROMPT),
            }),
            (MONGO_KAFKA, AS_TEXT, {CONNECT_MONGO: mongo_settings(uri, None, {})}),
        ]  # fmt: skip
        for peer, converter, variants in peers:
            if not any(map(scenario.wants, variants)):
                continue
            try:
                worker = ConnectWorker(peer, servers, converter, scenario.folder)
            except TailraceError as error:
                made += [Unavailable(name, f"it cannot be fetched: {error}") for name in variants]
                continue
            workers.callback(worker.close)
            made += [ConnectHop(name, worker, servers, settings, load) for name, settings in variants.items()]
        measure(scenario, KAFKA, made)


def to_redis(scenario: Scenario, uri: str, client: Client) -> None:
    """The features job, and the loop that counts by itself; each has a collection of its own."""
    with Redis.start(REDIS_OPTIONS) as server:
        given = {"uri": uri, "redis_url": server.url}
        sizes = scenario["documents"], scenario["rate"]
        features = hop(
            RedisHop, FEATURES, "Features", Load(client, *sizes), given, server.url, FEATURE_KEYS, warm_ups=1
        )
        naive = hop(
            RedisHop, NAIVE, "naive_to_redis", Load(client, *sizes, "naive"), given, server.url, NAIVE_KEYS, peer=True
        )
        measure(scenario, REDIS, [features, naive])
        if isinstance(features, RedisHop) and features.told:
            scenario.note(f"micro-batches of {FEATURES} in its last turn, medians in ms: {features.told}")


def to_iceberg(scenario: Scenario, uri: str, client: Client) -> None:
    """The warehouse job."""
    folder = scenario.folder / "lake"
    load = Load(client, scenario["documents"], scenario["rate"])
    given = {"uri": uri, "folder": str(folder)}
    measure(scenario, ICEBERG, [hop(IcebergHop, WAREHOUSE, "Warehouse", load, given, folder, warm_ups=1)])


def with_both_jobs(scenario: Scenario, uri: str, client: Client) -> None:
    """Each of the two jobs again, beside the other one, which follows the same collection.

    Tables begin a batch once a second here (`warehouse.every_seconds`), since two jobs without a pause would only take
    turns at being late. Turns are longer than elsewhere: two JVMs that share two cores compile for a minute.
    """
    if not any(map(scenario.wants, (FEATURES, WAREHOUSE))):
        return
    load = Load(client, 4 * scenario["documents"], scenario["rate"])
    with Redis.start(REDIS_OPTIONS) as server:
        to_features = {"uri": uri, "redis_url": server.url}
        folders = (str(scenario.folder / f"lake-{one}") for one in ("timed", "beside"))
        timed, beside = ({"uri": uri, "folder": folder, "every_seconds": 1} for folder in folders)
        features = hop(
            RedisHop, FEATURES, "Features", load, to_features, server.url, FEATURE_KEYS, warm_ups=2,
            beside=job("Warehouse", load, beside),
        )  # fmt: skip
        measure(scenario, BOTH_REDIS, [features])
        tables = hop(
            IcebergHop, WAREHOUSE, "Warehouse", load, timed, Path(timed["folder"]), warm_ups=2,
            beside=job("Features", load, to_features),
        )  # fmt: skip
        measure(scenario, BOTH_ICEBERG, [tables])


if __name__ == "__main__":
    main(NAME, TITLE, SIZES, body)
