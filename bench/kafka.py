"""To Kafka: loaded events into a real broker, by our producer, by connectors in Kafka Connect, by the naive loop.

python -m bench.kafka [--mode quick] [--only REGEX]
"""

from __future__ import annotations

from contextlib import ExitStack

from bench.accounting import Meter
from bench.contestant import Contestant, Unavailable, python_job
from bench.peers import DEBEZIUM, MONGO_KAFKA, Peer
from bench.peers.connect import Connector, ConnectWorker
from bench.peers.recipes import DEBEZIUM_TUNED, MONGO_TUNED, PRODUCER_TUNED, debezium_settings, mongo_settings
from bench.scenario import Claim, Scenario, main
from bench.workload import load
from tailrace.errors import TailraceError
from tailrace.stand import Kafka, ReplicaSet

NAME = "kafka"
TITLE = "loaded events, into a Kafka broker"
SIZES = {
    "tiny": {"events": 6_000, "naive_events": 300, "rounds": 1},
    "quick": {"events": 50_000, "naive_events": 2_000},
    "full": {"events": 300_000, "naive_events": 6_000},
}
GROUP = "kafka"

RAW = "raw getMore loop"
NAIVE = "naive loop"
DEBEZIUM_DEFAULT = "Debezium in Kafka Connect"
DEBEZIUM_BEST = "Debezium in Kafka Connect, tuned"
MONGO_DEFAULT = "MongoDB Kafka connector in Kafka Connect"
MONGO_BEST = "MongoDB Kafka connector in Kafka Connect, tuned"
JSON_OWN, BSON_OWN = "producer, json, the collection's own stream", "producer, bson, the collection's own stream"
JSON, BSON, EXACTLY_ONCE = "producer, json", "producer, bson", "producer, json, exactly-once"
JSON_OPLOG = "producer, json, oplog"
AVRO, AVRO_OPLOG = "producer, avro", "producer, avro, oplog"
JSON_SCHEMA, CLOUD_EVENTS = "producer, jsonschema, oplog", "producer, cloudevents, oplog"
POLICY, POLICY_OPLOG = "producer, json, field policy", "producer, json, oplog, field policy"
OURS = {
    JSON: {},
    BSON: {"format": "bson"},
    JSON_OWN: {"scope": "collection"},
    BSON_OWN: {"format": "bson", "scope": "collection"},
    "producer, debezium": {"format": "debezium"},
    "producer, canonical": {"format": "canonical"},
    "producer, flat": {"format": "flat"},
    EXACTLY_ONCE: {"delivery": "exactly-once"},
    JSON_OPLOG: {"source": "oplog"},
    "producer, bson, oplog": {"format": "bson", "source": "oplog"},
    AVRO: {"format": "avro"},
    AVRO_OPLOG: {"format": "avro", "source": "oplog"},
    JSON_SCHEMA: {"format": "jsonschema", "source": "oplog"},
    CLOUD_EVENTS: {"format": "cloudevents", "source": "oplog"},
    POLICY: {"policy": True},
    POLICY_OPLOG: {"policy": True, "source": "oplog"},
}
ONLY_FULL = {
    *(JSON_OWN, BSON_OWN, "producer, canonical", "producer, flat", "producer, bson, oplog"),
    *(AVRO, JSON_SCHEMA, CLOUD_EVENTS, POLICY),
}
"""Left out of quick runs; what the formats cost is in `bench.parts`."""
_STRINGS = "org.apache.kafka.connect.storage.StringConverter"
_JSON = "org.apache.kafka.connect.json.JsonConverter"
AS_TEXT = {"key.converter": _STRINGS, "value.converter": _STRINGS}
AS_JSON = {
    "key.converter": _JSON,
    "value.converter": _JSON,
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}

CLAIMS = [
    *(
        Claim(JSON, rival, metric, goal, GROUP)
        for rival, goals in {
            DEBEZIUM_DEFAULT: (2.5, 2.0),
            DEBEZIUM_BEST: (2.5, 2.0),
            MONGO_DEFAULT: (2.0, 2.0),
            MONGO_BEST: (2.0, 2.0),
        }.items()
        for metric, goal in zip(("rate", "tool_us"), goals, strict=True)
    ),
    Claim("producer, debezium", DEBEZIUM_DEFAULT, group=GROUP),
    Claim(JSON, NAIVE, goal=20, group=GROUP),
    *(
        Claim(JSON_OPLOG, rival, metric, goal, GROUP)
        for rival, goals in {DEBEZIUM_BEST: (8.0, 10.0), MONGO_BEST: (6.0, 6.0)}.items()
        for metric, goal in zip(("rate", "tool_us"), goals, strict=True)
    ),
    *(Claim(f"producer, {name}", JSON, "tool_us", 0.77, GROUP) for name in ("debezium", "canonical", "flat")),
    Claim(JSON, RAW, goal=0.9, group=GROUP),
    Claim(BSON, RAW, goal=0.75, group=GROUP),
    Claim(JSON_OWN, RAW, goal=0.6, group=GROUP),
    Claim(BSON_OWN, RAW, goal=0.75, group=GROUP),
    Claim(EXACTLY_ONCE, JSON, goal=0.8, group=GROUP),
    Claim(JSON_OPLOG, JSON, goal=1.0, group=GROUP),
    Claim("producer, bson, oplog", BSON, goal=1.0, group=GROUP),
    *(
        Claim(ours, plain, metric, goal, GROUP)
        for ours, plain, goal in (
            (AVRO, JSON, 0.8),
            (AVRO_OPLOG, JSON_OPLOG, 0.8),
            (JSON_SCHEMA, JSON_OPLOG, 0.8),
            (CLOUD_EVENTS, JSON_OPLOG, 0.8),
            (POLICY, JSON, 0.9),
            (POLICY_OPLOG, JSON_OPLOG, 0.9),
        )
        for metric in ("rate", "tool_us")
    ),
]


def body(scenario: Scenario) -> None:
    """Load, then let everybody capture in turn."""
    scenario.claims = list(CLAIMS)
    with (
        ReplicaSet.start(oplog_mb=2_000) as replica_set,
        Kafka.start() as broker,
        replica_set.client() as client,
        ExitStack() as workers,
    ):
        start = load(client, scenario["events"])
        place = [start.time, start.inc]
        meter = Meter({"mongod": [replica_set.primary.pid], "broker": [broker.pid]}, client)
        made = [
            *ours(scenario, replica_set.uri, broker.bootstrap_servers, place),
            *connectors(scenario, workers, replica_set.uri, broker.bootstrap_servers, place),
        ]
        if scenario.mode == "quick":
            made = [one for one in made if one.name not in ONLY_FULL]
        with scenario.contestants(made, group=GROUP) as started:
            scenario.interleave(started, meter, group=GROUP)
    scenario.note("the raw loop reads the collection's own stream; the producer's default is the cluster's, filtered")
    scenario.note("producers are measured from their start, connectors from a third on; all after a warm-up")
    scenario.note(
        "the policy hashes a field, masks one in an array and cuts one; the registry of schemas is in the process"
    )
    scenario.note("what a transaction's commit writes is in the time of exactly-once; connectors deliver at least once")


def ours(scenario: Scenario, uri: str, servers: str, start: list[int]) -> list[Contestant]:
    """The server's own limit, our producer in its formats and guarantees, and the naive loop."""
    events = scenario["events"]
    given = {"uri": uri, "start": start, "events": events}
    kafka = {**given, "servers": servers}
    return [
        python_job(RAW, "bench.drain_jobs:RawLoop", given, warm_ups=1),
        *(
            python_job(
                name,
                "bench.kafka_jobs:capture",
                {**kafka, "prefix": f"t{number}", **options},
                settings=options,
                warm_ups=1,
            )
            for number, (name, options) in enumerate(OURS.items())
        ),
        python_job(
            NAIVE, "bench.kafka_jobs:naive", {**kafka, "events": scenario["naive_events"], "prefix": "naive"}, peer=True
        ),
    ]


def connectors(
    scenario: Scenario, workers: ExitStack, uri: str, servers: str, start: list[int]
) -> list[Contestant | Unavailable]:
    """Both connectors, as they come and tuned; one worker for each product."""
    events = scenario["events"]

    def pair(
        peer: Peer, converter: dict[str, str], variants: dict[str, dict[str, str]]
    ) -> list[Contestant | Unavailable]:
        if not any(map(scenario.wants, variants)):
            return []
        try:
            worker = ConnectWorker(peer, servers, converter, scenario.folder)
        except TailraceError as error:
            return [Unavailable(name, f"it cannot be fetched: {error}") for name in variants]
        workers.callback(worker.close)
        return [Connector(name, worker, servers, settings, events) for name, settings in variants.items()]

    debezium_tuned = {**PRODUCER_TUNED, **DEBEZIUM_TUNED}
    mongo_tuned = {**PRODUCER_TUNED, **MONGO_TUNED}
    return [
        *pair(
            DEBEZIUM,
            AS_JSON,
            {
                DEBEZIUM_DEFAULT: debezium_settings(uri, start, {}),
                DEBEZIUM_BEST: debezium_settings(uri, start, debezium_tuned),
            },
        ),
        *pair(
            MONGO_KAFKA,
            AS_TEXT,
            {MONGO_DEFAULT: mongo_settings(uri, start, {}), MONGO_BEST: mongo_settings(uri, start, mongo_tuned)},
        ),
    ]


if __name__ == "__main__":
    main(NAME, TITLE, SIZES, body)
