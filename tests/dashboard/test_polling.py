"""A source that fails or hangs is shown with its reason, and is looked at again."""

from __future__ import annotations

import threading

from structlog.testing import capture_logs

from tailrace.dashboard.sources import PolledSource, polling, reason_of
from tailrace.errors import ServerUnreachable
from waiting import SECONDS
from waiting import wait_until as until


class Moody:
    """A source that does what the test says."""

    name = "moody"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.looks = 0
        self.closed = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def poll(self) -> int:
        self.looks += 1
        self.go_on.wait(SECONDS)
        if self.error is not None:
            raise self.error
        return self.looks

    def close(self) -> None:
        self.closed += 1


def test_a_failure_keeps_the_last_value_and_the_next_good_look_clears_it() -> None:
    source = Moody()
    looking = PolledSource(source, 0.01)
    looking.start()
    try:
        until(lambda: looking.reading().is_good, "a good look")
        source.error = ServerUnreachable("nobody answers at mongodb://ann:hunter2@host/")
        failed = until(lambda: (r := looking.reading()).problem and r, "a failure")
        assert failed.problem == "nobody answers at mongodb://ann:***@host/"
        assert failed.value is not None
        assert failed.fresh is None
        assert source.closed > 0
        source.error = None
        until(lambda: looking.reading().is_good, "a good look again")
    finally:
        looking.stop()
        looking.join(SECONDS)


def test_an_outage_is_logged_once_and_its_end_too() -> None:
    source = Moody()
    looking = PolledSource(source, 0.01)
    with capture_logs() as logs:
        looking.start()
        try:
            until(lambda: looking.reading().is_good, "a good look")
            for number in range(3):
                source.error = ServerUnreachable(f"no answer in {number} s")
                until(lambda: looking.reading().problem == str(source.error), "this failure")
            source.error = None
            until(lambda: looking.reading().is_good, "a good look again")
        finally:
            looking.stop()
            looking.join(SECONDS)
    shown = [(line["event"], line.get("reason")) for line in logs if line["log_level"] == "info"]
    assert shown == [("source_failed", "no answer in 0 s"), ("source_recovered", None)]


def test_a_source_that_fails_for_days_is_still_looked_at() -> None:
    source = Moody()
    source.error = ServerUnreachable("nobody answers")
    looking = PolledSource(source, 0.0)
    looking.start()
    try:
        until(lambda: source.looks > 1_100, "more failures than a float can double for")
        source.error = None
        until(lambda: looking.reading().is_good, "a good look again")
        assert looking._thread.deaths == 0
    finally:
        looking.stop()
        looking.join(SECONDS)


def test_a_look_that_hangs_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(polling, "_SECONDS_TO_ANSWER", 0.05)
    source = Moody()
    source.go_on.clear()
    looking = PolledSource(source, 0.01)
    looking.start()
    try:
        hanging = until(lambda: (r := looking.reading()).problem and r, "a report of the hanging look")
        assert "no answer for" in (hanging.problem or "")
    finally:
        source.go_on.set()
        looking.stop()
        looking.join(SECONDS)


def test_a_reason_is_one_short_line_without_secrets() -> None:
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(ValueError("first\nsecond")) == "first"
    assert "hunter2" not in reason_of(OSError("redis://ann:hunter2@host:1 is away"))
    assert len(reason_of(ValueError("x" * 10_000))) < 300
