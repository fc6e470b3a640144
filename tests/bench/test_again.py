"""Scenarios that are measured again take the place of the stored ones, and say so."""

from __future__ import annotations

from bench.__main__ import put
from bench.result import ScenarioResult

from bench_results import sample_result


def test_a_scenario_takes_the_place_of_the_one_before_and_says_when() -> None:
    result = sample_result()
    names, seconds = [one.name for one in result.scenarios], result.seconds
    old = result.scenarios[0]
    again = ScenarioResult(old.name, old.title, "done", seconds=old.seconds + 5)
    put(result, again, again=True)
    assert [one.name for one in result.scenarios] == names
    assert result.scenarios[0] is again
    assert again.notes[0].startswith("measured at ")
    assert result.seconds == seconds + 5


def test_a_new_scenario_comes_last() -> None:
    result = sample_result()
    put(result, ScenarioResult("other", "", "done"), again=False)
    assert result.scenarios[-1].name == "other"
    assert result.scenarios[-1].notes == []


def test_one_that_was_missing_says_when_it_was_measured_too() -> None:
    result = sample_result()
    seconds = result.seconds
    put(result, ScenarioResult("other", "", "done", seconds=7), again=True)
    assert result.scenarios[-1].notes[0].startswith("measured at ")
    assert result.seconds == seconds + 7
