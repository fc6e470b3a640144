"""Cost: what the producer holds when its broker stands still while events wait for it.

python -m bench.cost [--mode quick]

What an event costs in CPU, memory and bytes over the wire is taken along in every run of `drain` and `kafka`, and
shown as a table of its own in the report; here is the one cost that they do not show.
"""

from __future__ import annotations

import time

from bench.accounting import Meter, peak_mb, tree_of
from bench.contestant import ContestantFailed, ProcessContestant, python_job
from bench.scenario import Claim, Scenario, main
from bench.workload import load
from tailrace.stand import Kafka, ReplicaSet

NAME = "cost"
TITLE = "memory of a producer whose broker stands still"
SIZES = {
    "tiny": {"rounds": 1, "events": 3_000, "delivered": 3_000, "seconds": 1},
    "quick": {"events": 80_000, "delivered": 60_000, "seconds": 3},
    "full": {"events": 1_000_000, "delivered": 200_000, "seconds": 10},
}
GROUP = "broker stands still"
JSON, OPLOG = "producer, json", "producer, json, oplog"


class Stalled(ProcessContestant):
    """A producer that gets no answers for some seconds."""

    broker: Kafka
    stalled_for: float

    def run(self, meter: Meter) -> dict[str, float]:
        """Let it begin, stop the broker, and look at its memory."""
        process = self.process
        process.tell("go")
        process.wait_for("begin", self.seconds)
        process.tell("on")
        process.wait_for("warm", self.seconds)
        time.sleep(0.5)
        self.broker.pause()
        try:
            time.sleep(self.stalled_for)
            found = peak_mb(tree_of(process.pid))
        finally:
            self.broker.resume()
        process.wait_for("done", self.seconds)
        if not found:
            raise ContestantFailed("its memory cannot be read")
        return {"peak_mb": found}


def body(scenario: Scenario) -> None:
    """Both sources, with the same events waiting; once the broker goes on, some of them are delivered."""
    scenario.claims = [Claim(OPLOG, JSON, "peak_mb", group=GROUP)]
    with ReplicaSet.start(oplog_mb=4_000) as replica_set, Kafka.start() as broker, replica_set.client() as client:
        start = load(client, scenario["events"], seed=2, is_mixed=False)
        made = []
        for number, (name, source) in enumerate({JSON: "change-stream", OPLOG: "oplog"}.items()):
            given = {
                "uri": replica_set.uri,
                "servers": broker.bootstrap_servers,
                "start": [start.time, start.inc],
                "events": scenario["delivered"],
                "prefix": f"cost{number}",
                "source": source,
            }
            command = python_job(name, "bench.kafka_jobs:capture", given).command
            one = Stalled(name, command, seconds=300.0)
            one.broker, one.stalled_for = broker, scenario["seconds"]
            made.append(one)
        with scenario.contestants(made, group=GROUP) as started:
            scenario.interleave(started, Meter({}), group=GROUP)


if __name__ == "__main__":
    main(NAME, TITLE, SIZES, body)
