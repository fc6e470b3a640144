"""The state of a producer, by what it has seen."""

from __future__ import annotations

from bson import Timestamp

from tailrace.capture.positions import Counts, Position
from tailrace.capture.producer.status import ProducerStatus
from tailrace.monitor import Patience, State
from tailrace.monitor.liveness import Observation, liveness_of
from tailrace.token import ResumeToken

START = 1_700_000_000


def position(second: int) -> Position:
    time = Timestamp(START + second, 1)
    return Position(ResumeToken.high_water_mark(time).to_bson(), time)


def test_a_producer_that_waits_for_its_sink_is_behind_and_not_stalled() -> None:
    status = ProducerStatus("orders")
    status.moved(position(0), Counts())
    status.seen(Timestamp(START, 1))
    status.patience = Patience(0.0, 0.0)  # every silence is a long one
    assert status.liveness().state is State.STALLED
    status.sink_waits("Kafka at h:9092: all brokers are down")
    assert status.liveness().state is State.BEHIND
    assert "all brokers are down" in status.liveness().proof
    consumer = status.consumer()
    assert consumer is not None
    assert "all brokers are down" in (consumer.sink_problem or "")
    status.moved(position(0), Counts())
    assert status.liveness().state is State.BEHIND, "the position has not moved"
    status.moved(position(5), Counts())
    assert status.liveness().state is State.STALLED


def test_the_monitor_says_the_same() -> None:
    seen = [
        Observation(float(second), Timestamp(START, 1), Timestamp(START + second, 1), sink_problem="the broker is down")
        for second in range(0, 200, 10)
    ]
    assert liveness_of(seen).state is State.BEHIND
    assert "the broker is down" in liveness_of(seen).proof
