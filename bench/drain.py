"""Drain: events that were loaded before are read to their end by everybody in turn, and watchers share one server.

python -m bench.drain [--mode quick] [--only REGEX]
"""

from __future__ import annotations

from bench.accounting import Meter
from bench.contestant import Contestant, Unavailable, python_job
from bench.peers.recipes import DEBEZIUM_TUNED, MONGO_TUNED, debezium_engine, mongo_task, spark_connector
from bench.scenario import Claim, Scenario, main
from bench.watchers import Watchers
from bench.workload import ONE_BUCKET, Client, kept_by_one_bucket, load
from tailrace.stand import ReplicaSet

NAME = "drain"
TITLE = "loaded events, read to their end"
SIZES = {
    "tiny": {"events": 3_000, "rounds": 1, "watchers": [1, 3], "seconds": 1},
    "quick": {"events": 60_000, "watchers": [1, 10, 50, 200], "seconds": 1},
    "full": {"events": 300_000, "watchers": [1, 10, 50, 200], "seconds": 3},
}

RAW = "raw getMore loop"
OPLOG = "raw oplog scan"
PYMONGO = "pymongo watch()"
PYMONGO_TUNED = "pymongo watch(), batch_size=1000"
PYMONGO_ASYNC = "pymongo async watch()"
BATCHES = "driver batches()"
DECODED = "driver, decoded"
ASYNC = "async driver, decoded"
ENGINE = "engine"
GATEWAY = "gateway, one watcher"
DEBEZIUM_JSON = "Debezium engine, JSON"
DEBEZIUM_CONNECT = "Debezium engine, Connect records"
DEBEZIUM_BEST = "Debezium engine, JSON, tuned"
MONGO = "MongoDB Kafka connector task"
MONGO_BEST = "MongoDB Kafka connector task, tuned"
SPARK = "MongoDB Spark Connector"
SPARK_STREAM = 'format("tailrace"), change-stream'
SPARK_OPLOG = 'format("tailrace"), oplog'
RAW_FILTERED = "raw getMore loop, $match 0.1 %"
ENGINE_FILTERED = "engine, $match 0.1 %"
FILTERED = "filtered"
ON_SERVER, ON_GATEWAY = "server-side cursors", "gateway"
ONLY_FULL = {MONGO_BEST, PYMONGO_ASYNC, ASYNC}
"""Left out of quick runs, which have ten minutes for everything."""

CLAIMS = [
    Claim(ENGINE, RAW, goal=6.0),
    Claim(ENGINE, RAW, "mongod_us", goal=8.0),
    Claim(ENGINE_FILTERED, RAW_FILTERED, goal=1.5, group=FILTERED),
    Claim(ENGINE_FILTERED, RAW_FILTERED, "mongod_us", group=FILTERED),
    Claim(BATCHES, RAW, goal=0.95),
    Claim(DECODED, PYMONGO, goal=2.5),
    Claim(DECODED, PYMONGO_TUNED),
    Claim(ASYNC, PYMONGO_ASYNC, goal=1.3),
    Claim(GATEWAY, RAW),
    Claim(ENGINE, OPLOG),
    *(Claim(ours, rival) for ours in (DECODED, ENGINE) for rival in (DEBEZIUM_JSON, DEBEZIUM_BEST, MONGO, MONGO_BEST)),
    *(Claim(DECODED, rival, "tool_us") for rival in (PYMONGO, DEBEZIUM_JSON, MONGO)),
    Claim(SPARK_STREAM, SPARK, goal=2.0),
    Claim(SPARK_OPLOG, SPARK, goal=4.0),
    Claim(SPARK_STREAM, SPARK, "tool_us", goal=1.0),
    Claim(SPARK_OPLOG, SPARK, "tool_us", goal=1.0),
]


def everybody(uri: str, start: list[int], events: int) -> list[Contestant | Unavailable]:
    """All who drain."""
    given = {"uri": uri, "start": start, "events": events}

    def job(name: str, target: str, **more: object) -> Contestant:
        peer = name.startswith("pymongo")
        return python_job(name, f"bench.drain_jobs:{target}", {**given, **more}, peer=peer)

    def spark(name: str, source: str) -> Contestant:
        chosen = {"source": source, "scope": "collection"}  # what the rival reads
        return python_job(name, "bench.spark_jobs:TailraceSource", {**given, **chosen}, settings=chosen, warm_ups=1)

    raw = python_job(RAW, "bench.drain_jobs:RawLoop", given, warm_ups=1)
    scan = python_job(OPLOG, "bench.drain_jobs:OplogScan", given, warm_ups=1)
    gateway = python_job(GATEWAY, "bench.drain_jobs:GatewayLoop", given, warm_ups=1)
    return [
        raw,
        job(BATCHES, "driver_batches"),
        job(ENGINE, "engine"),
        scan,
        gateway,
        job(DECODED, "driver_decoded"),
        job(PYMONGO, "pymongo_watch"),
        job(PYMONGO_TUNED, "pymongo_watch", batch_size=1_000),
        job(ASYNC, "driver_async"),
        job(PYMONGO_ASYNC, "pymongo_async"),
        debezium_engine(DEBEZIUM_JSON, "json", uri, start, events),
        debezium_engine(DEBEZIUM_CONNECT, "connect", uri, start, events),
        debezium_engine(DEBEZIUM_BEST, "json", uri, start, events, DEBEZIUM_TUNED),
        mongo_task(MONGO, "drain", uri, start, events),
        mongo_task(MONGO_BEST, "drain", uri, start, events, MONGO_TUNED),
        spark(SPARK_STREAM, "change-stream"),
        spark(SPARK_OPLOG, "oplog"),
        spark_connector(SPARK, uri, start, events, {"change.stream.micro.batch.max.partition.count": "2"}),
    ]


def body(scenario: Scenario) -> None:
    """Drain, then the watchers."""
    scenario.claims = list(CLAIMS)
    with ReplicaSet.start(oplog_mb=2_000) as replica_set, replica_set.client() as client:
        scenario.attempt(drain, replica_set, client)
        scenario.attempt(watchers, replica_set, client)


def drain(scenario: Scenario, replica_set: ReplicaSet, client: Client) -> None:
    """Everybody reads the same events."""
    start = load(client, scenario["events"])
    scenario.note(f"{scenario['events']:,} events: 60 % inserts of 300 bytes, 30 % updates, 10 % deletes")
    scenario.note("JVM tools are measured from a third on; what they had fetched by then is not in their mongod column")
    meter = Meter({"mongod": [replica_set.primary.pid]}, client)
    made = everybody(replica_set.uri, [start.time, start.inc], scenario["events"])
    if scenario.mode == "quick":
        made = [one for one in made if one.name not in ONLY_FULL]
    with scenario.contestants(made) as started:
        scenario.interleave(started, meter)
    given = {
        "uri": replica_set.uri,
        "start": [start.time, start.inc],
        "events": kept_by_one_bucket(client, start),
        "pipeline": [{"$match": ONE_BUCKET}],
    }
    scenario.note(f"`$match` of 0.1 % keeps {given['events']} events: those are counted")
    filtered = [
        python_job(RAW_FILTERED, "bench.drain_jobs:RawLoop", given, warm_ups=1),
        python_job(ENGINE_FILTERED, "bench.drain_jobs:engine", given, warm_ups=1),
    ]
    with scenario.contestants(filtered, group=FILTERED) as started:
        scenario.interleave(started, meter, group=FILTERED)


def watchers(scenario: Scenario, replica_set: ReplicaSet, client: Client) -> None:
    """The same number of watchers on the server and on a gateway, with a writer at full speed."""
    if not (scenario.wants(ON_SERVER) or scenario.wants(ON_GATEWAY)):
        return
    client.bench.create_collection("watched")
    for count in scenario["watchers"]:
        sides = [
            Watchers(name, replica_set, count, scenario["seconds"], by_gateway=name == ON_GATEWAY)
            for name in (ON_SERVER, ON_GATEWAY)
        ]
        with scenario.contestants(sides, group="watchers") as started:
            scenario.interleave(started, Meter({}), group="watchers", x=count)
        for metric in ("inserts", "mongod_us", "delivered"):
            scenario.claims.append(Claim(ON_GATEWAY, ON_SERVER, metric, group="watchers", x=count))


if __name__ == "__main__":
    main(NAME, TITLE, SIZES, body)
