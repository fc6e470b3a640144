"""A small result of a benchmark run, with everything that a result can hold."""

from __future__ import annotations

from bench.result import Fit, Latencies, Measurement, Ratio, Result, ScenarioResult, Target


def sample_result(ours: float = 2.0) -> Result:
    rounds = [{"rate": rate, "tool_us": 10.0, "mongod_us": 5.0, "wire_bytes": 500.0} for rate in (100.0, 200.0, 300.0)]
    drain = ScenarioResult(
        "drain",
        "loaded events",
        status="partial",
        reason="Spark | Connector: cannot be fetched",
        parameters={"events": 1_000, "rounds": 3},
        measurements=[
            Measurement("engine", "drain", rounds=rounds),
            Measurement("Debezium <engine>", "drain", peer=True, settings={"max.batch.size": "8192"}, rounds=rounds),
            Measurement("Spark Connector", "drain", peer=True, problem="cannot be fetched"),
            *(Measurement("gateway", "watchers", x, rounds=[{"mongod_us": x}]) for x in (1.0, 10.0, 100.0)),
        ],
        ratios=[
            Ratio("engine / Debezium, rate", "engine", "Debezium <engine>", "rate", "drain", ours, True, goal=2.5),
            Ratio("engine / Debezium, CPU", "engine", "Debezium <engine>", "tool_us", "drain", 0.7, True),
            Ratio("engine / limit", "engine", "limit", "rate", "drain", 0.5, False, goal=0.4),
        ],
        fits=[Fit("gateway", "watchers", "mongod_us", 1.0, 3)],
    )
    latency = ScenarioResult(
        "latency",
        "insert to watcher",
        status="done",
        measurements=[Measurement("driver", "to watcher", rounds=[{"p50_ms": 2.0}])],
        targets=[
            Target("driver to watcher, p50_ms", 2.0, 2.5, "p50_ms"),
            Target("driver to watcher, rate", 1_900.0, 2_000.0, "rate"),
        ],
        latencies=[
            Latencies("driver", "to watcher", 3, [(0.0, 1.0), (50.0, 2.0), (95.0, 3.0), (99.0, 4.0), (100.0, 5.0)])
        ],
    )
    return Result(
        mode="quick",
        started="2026-01-02T03:04:05+00:00",
        commit="abc1234",
        dirty=False,
        machine={"cpu": "a cpu", "cores": 2, "memory_gb": 8.0, "system": "Linux", "load_before": 0.1},
        versions={"python": "3.11"},
        scenarios=[drain, latency],
    )
