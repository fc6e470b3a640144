"""Lake: a Kafka topic into a history and a mirror in Iceberg, beside the plain append that Spark does alone.

python -m bench.lake [--mode quick]

What the job spends in its parts, and whether batches get slower with the days, is told by `python -m bench.warehouse`.
"""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewTopic

from bench.accounting import Meter
from bench.contestant import python_job
from bench.scenario import Claim, Scenario, main
from bench.warehouse import produce
from tailrace.stand import Kafka

NAME = "lake"
TITLE = "a topic into Iceberg tables"
SIZES = {
    "tiny": {"rounds": 1, "rows": 1_000, "events": 600},
    "quick": {"rows": 50_000, "events": 20_000},
    "full": {"rows": 1_000_000, "events": 50_000},
}
GROUP = "Kafka to Iceberg"
TABLES, APPEND = "warehouse: history and mirror", "Spark append alone"
_PARTITIONS = 6


def body(scenario: Scenario) -> None:
    """Make a topic for every run, then take turns."""
    scenario.claims = [Claim(TABLES, APPEND, metric, group=GROUP) for metric in ("rate", "tool_us")]
    with Kafka.start() as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        for number in range(scenario["rounds"] + 1):
            topic = f"t{number}"
            admin.create_topics([NewTopic(topic, _PARTITIONS, 1)])[topic].result(60)
            produce(broker, topic, scenario["events"], scenario["rows"], number + 2)
        made = [
            python_job(
                name,
                f"bench.lake_jobs:{target}",
                {
                    "servers": servers,
                    "rows": scenario["rows"],
                    "folder": str(scenario.folder / target),
                    "events": scenario["events"],
                },
                warm_ups=1,
                seconds=600.0,
                seconds_to_start=900.0,
            )
            for name, target in {TABLES: "Tables", APPEND: "Append"}.items()
        ]
        with scenario.contestants(made, group=GROUP) as started:
            scenario.interleave(started, Meter({"broker": [broker.pid]}), group=GROUP)
    scenario.note("the append alone keeps neither current documents nor a promise about duplicates")


if __name__ == "__main__":
    main(NAME, TITLE, SIZES, body)
