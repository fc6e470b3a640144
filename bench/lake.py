"""Lake: a Kafka topic into a history and a mirror in Iceberg, beside the plain append that Spark does alone.

python -m bench.lake [--mode quick]

What the job spends in its parts, and whether batches get slower with the days, is told by `python -m bench.warehouse`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench.accounting import Meter
from bench.contestant import ProcessContestant, command_of
from bench.scenario import Claim, Goal, Scenario, main
from bench.warehouse import produce
from tailrace.stand import Kafka

NAME = "lake"
TITLE = "a topic into Iceberg tables"
SIZES = {
    "tiny": {"rounds": 1, "rows": 1_000, "events": 600},
    "quick": {"rows": 50_000, "events": 20_000},
    "full": {"rows": 1_000_000, "events": 200_000},
}
GROUP = "Kafka to Iceberg"
TABLES, APPEND = "warehouse: history and mirror", "Spark append alone"
ALONE = {"history": "warehouse: history alone", "mirror": "warehouse: mirror alone"}
"""What one kind of table takes of the job that writes both: reading, and the writing of that kind."""
_PARTITIONS = 6


class TablesJob(ProcessContestant):
    """The job; the rates of its parts are in `alone`, by the kind of the table."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.alone: list[dict[str, float]] = []

    def run(self, meter: Meter) -> dict[str, float]:
        """Take one turn."""
        found = super().run(meter)
        self.alone.append(json.loads(self.process.wait_for("alone", self.seconds)))
        return found


def body(scenario: Scenario) -> None:
    """Make a topic for every run, then take turns."""
    scenario.claims = [
        *(Claim(TABLES, APPEND, metric, group=GROUP) for metric in ("rate", "tool_us")),
        Claim(ALONE["history"], APPEND, "rate", 0.8, GROUP),
    ]
    scenario.goals = [
        Goal(ALONE["history"], "rate", 60_000.0, GROUP),
        Goal(ALONE["mirror"], "rate", 25_000.0, GROUP),
    ]
    with Kafka.start() as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        for number in range(scenario["rounds"] + 1):
            topic = f"t{number}"
            admin.create_topics([NewTopic(topic, _PARTITIONS, 1)])[topic].result(60)
            produce(broker, topic, scenario["events"], scenario["rows"], number + 2)
        made = [
            kind(
                name,
                command_of(
                    f"bench.lake_jobs:{target}",
                    {
                        "servers": servers,
                        "rows": scenario["rows"],
                        "folder": str(scenario.folder / target),
                        "events": scenario["events"],
                    },
                ),
                warm_ups=1,
                seconds=600.0,
                seconds_to_start=900.0,
            )
            for name, kind, target in ((TABLES, TablesJob, "Tables"), (APPEND, ProcessContestant, "Append"))
        ]
        with scenario.contestants(made, group=GROUP) as started:
            scenario.interleave(started, Meter({"broker": [broker.pid]}), group=GROUP)
        for one in made:
            if isinstance(one, TablesJob):
                add_parts(scenario, one.alone[one.warm_ups :])
    scenario.note("the append alone keeps neither current documents nor a promise about duplicates")


def add_parts(scenario: Scenario, turns: Sequence[Mapping[str, float]]) -> None:
    """Keep what one kind of table took in each turn."""
    for kind, name in ALONE.items():
        scenario.measurement(name, GROUP).rounds.extend({"rate": rates[kind]} for rates in turns)


if __name__ == "__main__":
    main(NAME, TITLE, SIZES, body)
