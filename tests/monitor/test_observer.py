"""The observer on a real stream that no event ever passes: idle as long as it is read, stalled when it is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from bson import Timestamp
from pymongo import MongoClient

from tailrace.monitor import REGISTRY, Consumer, LagLimits, Observer, Oplog, Report, ShardReader, State
from tailrace.monitor.liveness import Liveness
from tailrace.monitor.observer import show_reports
from tailrace.stand import ReplicaSet
from tailrace.token import ResumeToken

SECONDS_TO_WAIT = 60


def until(look: Callable[[], Report], wanted: Callable[[Report], bool]) -> Report:
    """Look until a report is as wanted."""
    deadline = time.monotonic() + SECONDS_TO_WAIT
    while not wanted(report := look()):
        assert time.monotonic() < deadline, report
        time.sleep(0.1)
    return report


def state_of(report: Report) -> State:
    assert report.liveness is not None
    return report.liveness.state


def test_a_stream_without_events_is_idle_while_it_is_read_and_stalled_when_it_is_not(
    start_mongodb: Callable[..., ReplicaSet],
) -> None:
    replica_set = start_mongodb(parameters={"periodicNoopIntervalSecs": 1})
    with replica_set.client() as client:
        client.shop.orders.insert_one({})
        with client.watch([{"$match": {"operationType": "never"}}], max_await_time_ms=100) as stream:

            def consumer() -> Consumer:
                token = stream.resume_token
                assert token is not None
                return Consumer("filtered", ResumeToken.parse(token).cluster_time, events=0)

            limits = LagLimits(behind_seconds=2, stalled_seconds=3)
            observer = Observer([ShardReader(client)], lambda: [consumer()], limits=limits)

            def read_and_look() -> Report:
                assert stream.try_next() is None
                return observer.poll()[0]

            start = consumer().position
            idle = until(read_and_look, lambda report: moved(report, start) >= 2 and state_of(report) is State.IDLE)
            assert idle.liveness is not None
            assert "with no event in" in idle.liveness.proof
            stalled = until(lambda: observer.poll()[0], lambda report: state_of(report) is State.STALLED)
            assert stalled.liveness is not None
            assert "has not moved for" in stalled.liveness.proof
            assert stalled.verdict.reasons
            until(read_and_look, lambda report: state_of(report) is State.IDLE)


def moved(report: Report, start: Timestamp) -> int:
    assert report.lag is not None
    return report.lag.position.time - start.time


def test_a_server_that_is_away_is_tried_again_until_told_to_stop_and_logged_once() -> None:
    looks: list[None] = []

    def consumers() -> list[Consumer]:
        looks.append(None)
        return []

    with structlog.testing.capture_logs() as lines:
        client: MongoClient[dict[str, Any]] = MongoClient("mongodb://127.0.0.1:1/", serverSelectionTimeoutMS=20)
        with client:
            observer = Observer([ShardReader(client, "rs0")], consumers)
            with observer.running(every_seconds=0.01):
                deadline = time.monotonic() + SECONDS_TO_WAIT
                while len(looks) < 3:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
    assert "tailrace-observer" not in {thread.name for thread in threading.enumerate()}
    assert [line["code"] for line in lines] == ["server-unreachable"]


def test_the_metrics_show_the_worst_state_of_a_stream_on_any_shard() -> None:
    def report(shard: str, state: State) -> Report:
        oplog = Oplog(shard, Timestamp(1, 1), Timestamp(9, 1), 5, 10)
        observer = Observer([], list)
        judged = observer.judge(Consumer("worst", oplog.last), oplog, 0.0)
        return Report(0.0, oplog, "worst", judged.lag, Liveness(state, "as the test says"))

    show_reports([report("a", State.IDLE), report("b", State.STALLED), report("c", State.LIVE)])
    shown = {state: REGISTRY.get_sample_value("tailrace_state", {"stream": "worst", "state": state}) for state in State}
    assert shown == {state: float(state is State.STALLED) for state in State}
    # A counter at rest would raise TailracePositionNotCommitted for a stream that runs well elsewhere.
    assert REGISTRY.get_sample_value("tailrace_batches_total", {"stream": "worst"}) is None


def test_critical_comes_and_goes_only_when_two_readings_agree() -> None:
    observer = Observer([], list)
    start = 1_700_000_000
    oplog = Oplog("rs0", Timestamp(start, 1), Timestamp(start + 1_000, 1), 10**8, 10**8)
    levels = []
    for age in (100, 800, 100, 800, 800, 100, 800, 100, 100):
        consumer = Consumer("orders", Timestamp(start + 1_000 - age, 1))
        levels.append(observer.judge(consumer, oplog, float(start)).verdict.level.name[0])
    assert "".join(levels) == "OWOWCCCCO"
    lost = Consumer("orders", Timestamp(start - 1, 1))
    assert observer.judge(lost, oplog, float(start)).verdict.level.name == "CRITICAL", "what is lost is lost"
