"""The state of a producer, by what it has seen."""

from __future__ import annotations

import time

import pytest
from bson import Timestamp

from tailrace.capture.positions import Counts, Position
from tailrace.capture.producer import status as status_module
from tailrace.capture.producer.status import ProducerStatus
from tailrace.monitor import LagLimits, State
from tailrace.monitor.liveness import Observation, liveness_of
from tailrace.token import ResumeToken

START = 1_700_000_000


def position(second: int) -> Position:
    time = Timestamp(START + second, 1)
    return Position(ResumeToken.high_water_mark(time).to_bson(), time)


def test_a_producer_that_waits_for_its_sink_is_behind_and_not_stalled() -> None:
    status = ProducerStatus("orders")
    status.moved(position(0), Counts())
    status.observed(Timestamp(START, 1))
    status.lag_limits = LagLimits(0.0, 0.0)  # every silence is a long one
    assert status.liveness().state is State.STALLED
    status.delivery_waits("Kafka at h:9092: all brokers are down")
    assert status.liveness().state is State.BEHIND
    assert "all brokers are down" in status.liveness().proof
    consumer = status.consumer()
    assert consumer is not None
    assert "all brokers are down" in (consumer.sink_problem or "")
    status.moved(position(0), Counts())
    assert status.liveness().state is State.BEHIND, "the position has not moved"
    status.moved(position(5), Counts())
    assert status.liveness().state is State.STALLED


@pytest.mark.parametrize("jump", [3_600.0, -3_600.0])
def test_a_wall_clock_that_is_set_changes_no_judgement(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """Set forward it made a stall of a stream that is behind; set back it hid one, for as long as the jump."""
    passed = [0.0]
    wall, monotonic = time.time(), time.monotonic()
    monkeypatch.setattr(status_module.time, "time", lambda: wall + passed[0] + (jump if passed[0] else 0.0))
    monkeypatch.setattr(status_module.time, "monotonic", lambda: monotonic + passed[0])
    status = ProducerStatus("orders")
    status.lag_limits = LagLimits(10.0, 120.0)
    status.moved(position(0), Counts())
    for passed[0] in (0.0, 30.0, 60.0):
        status.observed(Timestamp(START + 300 + int(passed[0]), 1))
    assert status.liveness().state is State.BEHIND
    for passed[0] in (90.0, 120.0, 150.0):
        status.observed(Timestamp(START + 300 + int(passed[0]), 1))
    assert status.liveness().state is State.STALLED


def test_the_monitor_says_the_same() -> None:
    observed = [
        Observation(float(second), Timestamp(START, 1), Timestamp(START + second, 1), sink_problem="the broker is down")
        for second in range(0, 200, 10)
    ]
    assert liveness_of(observed).state is State.BEHIND
    assert "the broker is down" in liveness_of(observed).proof
