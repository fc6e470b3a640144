"""The one form of results: what is written is read again, and medians never stand without their rounds."""

from __future__ import annotations

import json

import pytest
from bench.figures import exponent_of, percentiles
from bench.result import Measurement, Result, is_lower_better

from bench_results import sample_result


def test_what_is_written_is_read_again() -> None:
    result = sample_result()
    assert Result.from_json(result.to_json()).to_json() == result.to_json()


def test_medians_and_spreads_stand_beside_the_rounds_for_other_readers() -> None:
    form = json.loads(sample_result().to_json())
    one = form["scenarios"][0]["measurements"][0]
    assert one["medians"]["rate"] == 200.0
    assert one["spreads"]["rate"] == [100.0, 300.0]
    assert [each["rate"] for each in one["rounds"]] == [100.0, 200.0, 300.0]


def test_a_result_says_where_it_comes_from() -> None:
    form = json.loads(sample_result().to_json())
    assert {"schema", "mode", "started", "commit", "dirty", "machine", "versions", "scenarios"} <= form.keys()
    assert {"parameters", "seed", "status", "measurements", "ratios", "latencies", "fits"} <= form["scenarios"][
        0
    ].keys()


@pytest.mark.parametrize("change", [{"schema": 99}, {"unknown": 1}])
def test_what_does_not_fit_is_refused(change: dict[str, object]) -> None:
    form = json.loads(sample_result().to_json()) | change
    with pytest.raises((ValueError, TypeError)):
        Result.from_json(json.dumps(form))


def test_a_measurement_without_rounds_has_no_median() -> None:
    assert Measurement("nobody", "drain").median("rate") is None
    assert Measurement("nobody", "drain").spread("rate") is None


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("rate", False), ("tool_us", True), ("p99_ms", True), ("peak_mb", True), ("inserts", False)],
)
def test_what_is_better(metric: str, expected: bool) -> None:
    assert is_lower_better(metric) is expected


def test_percentiles_are_values_that_were_measured() -> None:
    found = dict(percentiles([float(number) for number in range(1, 1001)]))
    assert (found[0.0], found[50], found[99], found[100.0]) == (1.0, 500.0, 990.0, 1000.0)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_power_of_growth_is_found(power: float) -> None:
    assert exponent_of([(x, 7 * x**power) for x in (1, 10, 200, 5_000)]) == pytest.approx(power)
