"""Every state of every part has its colour, and a reason for it."""

from __future__ import annotations

import pytest
from bson import Timestamp

from tailrace.dashboard.sources import Reading
from tailrace.dashboard.values import Colour, Condition, DeadLetter, DeadLetters
from tailrace.dashboard.view import conditions
from tailrace.monitor import Level, Oplog, Report, Verdict
from tailrace.settings import MonitorSettings

GREEN, AMBER, RED, GREY = Colour.GREEN, Colour.AMBER, Colour.RED, Colour.GREY


@pytest.mark.parametrize(
    ("state", "colour"),
    [
        ("idle", GREEN),
        ("live", GREEN),
        ("behind", AMBER),
        ("paused", AMBER),
        ("recovering", AMBER),
        ("stalled", RED),
        ("a state of a later version", AMBER),
    ],
)
def test_a_producers_state_has_a_colour_and_its_proof_is_the_reason(state: str, colour: Colour) -> None:
    assert conditions.of_state(state, "because") == Condition(colour, f"{state}: because")


def report(level: Level, *reasons: str) -> Report:
    oplog = Oplog("rs0", Timestamp(1_000, 1), Timestamp(8_200, 1), 10, 100)
    return Report(0.0, oplog, "orders", verdict=Verdict(level, reasons))


def test_a_live_stream_that_will_lose_its_history_is_as_bad_as_that() -> None:
    found = conditions.of_state("live", "it moves", [report(Level.CRITICAL, "history will be lost in 40 s")])
    assert found == Condition(RED, "live: history will be lost in 40 s")
    assert conditions.of_state("live", "it moves", [report(Level.OK)]).colour is GREEN


def test_the_oplog_is_as_bad_as_the_worst_stream_in_it() -> None:
    assert conditions.of_reports([]).colour is GREY
    assert conditions.of_reports([report(Level.OK)]) == Condition(GREEN, "the oplog holds 2 h of history")
    found = conditions.of_reports([report(Level.WARNING, "half"), report(Level.CRITICAL, "three quarters")])
    assert found == Condition(RED, "orders on rs0: three quarters")


@pytest.mark.parametrize(
    ("reading", "is_wanted", "colour"),
    [
        (Reading(), True, GREY),
        (Reading(1, None, 5.0, 0.1, 5.0), False, GREEN),
        (Reading(None, "Nobody answers", 5.0), True, RED),
        (Reading(None, "Nobody answers", 5.0), False, GREY),
        (Reading(1, "Nobody answers", 9.0, 0.1, 5.0), False, RED),
    ],
    ids=["not asked", "answers", "asked for", "not asked for", "answered before"],
)
def test_what_does_not_answer_is_red_when_it_should(reading: Reading[int], is_wanted: bool, colour: Colour) -> None:
    found = conditions.of_reading(reading, "Redis", is_wanted=is_wanted)
    assert found.colour is colour
    assert "obody answers" in found.reason or reading.problem is None


@pytest.mark.parametrize(
    ("at", "moved_at", "newest", "colour"),
    [
        (None, None, 1_000.0, GREY),
        (1_000.0, 1_001.0, 1_001.0, GREEN),
        (1_000.0, 1_001.0, None, GREEN),
        (10.0, 11.0, 10.0, GREEN),
        (900.0, 999.0, 1_000.0, AMBER),
        (900.0, 901.0, 1_000.0, RED),
    ],
    ids=["nothing yet", "fresh", "no topics", "nothing to do since long", "behind", "stalled"],
)
def test_a_job_is_judged_by_the_newest_event_there_is(
    at: float | None, moved_at: float | None, newest: float | None, colour: Colour
) -> None:
    found = conditions.of_progress("features", at, moved_at, newest, 1_002.0, MonitorSettings())
    assert found.colour is colour
    assert found.reason


def test_a_gateway_is_red_for_a_silent_shard_and_amber_for_a_slow_watcher() -> None:
    good = Reading(object(), None, 5.0, 0.1, 5.0)
    assert conditions.of_gateway(good, 3, {}, 1.0).colour is GREEN
    assert conditions.of_gateway(good, 3, {}, 40.0).colour is AMBER
    assert conditions.of_gateway(good, 3, {}, 1.0, distrusted=2).colour is AMBER
    assert conditions.of_gateway(good, 3, {"s1": 4.0}, 0.0) == Condition(RED, "shard s1 has not answered for 4 s")
    assert conditions.of_gateway(Reading(None, "Nobody", 5.0), 0, {}, 0.0).colour is RED


@pytest.mark.parametrize(
    ("total", "newest_at", "expected"),
    [
        (0, 990.0, Condition(GREEN, "well")),
        (None, 990.0, Condition(GREEN, "well")),
        (1, 990.0, Condition(AMBER, "well; 1 dead letter")),
        (1_200, 100.0, Condition(GREEN, "well; 1,200 dead letters")),
    ],
)
def test_new_dead_letters_want_attention_and_old_ones_are_told(
    total: int | None, newest_at: float, expected: Condition
) -> None:
    letters = DeadLetters("features", "here", total, [DeadLetter(newest_at, "cause", "", "", "", "", 1)])
    assert conditions.with_dead_letters(Condition(GREEN, "well"), letters, 1_000.0) == expected


def test_dead_letters_hide_no_trouble() -> None:
    letters = DeadLetters("features", "here", 2, [DeadLetter(990.0, "cause", "", "", "", "", 1)])
    assert conditions.with_dead_letters(Condition(RED, "away"), letters, 1_000.0) == Condition(
        RED, "away; 2 dead letters"
    )


def test_the_whole_is_the_worst_of_its_parts() -> None:
    good, bad, absent = Condition(GREEN, "a"), Condition(AMBER, "b"), Condition(GREY, "c")
    assert conditions.overall([good, absent]).colour is GREEN
    assert conditions.overall([absent]).colour is GREY
    assert conditions.overall([good, bad, absent]) == bad


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0.4 s"), (45.0, "45 s"), (120.0, "2 min"), (5_400.0, "1.5 h"), (259_200.0, "3.0 d")],
)
def test_durations_are_spoken_in_one_unit(seconds: float, text: str) -> None:
    assert conditions.spoken(seconds) == text
