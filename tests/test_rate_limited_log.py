"""A flood of lines of one kind is cut short, counted, and hides no other kind."""

from __future__ import annotations

import structlog.testing

from tailrace.rate_limited_log import RateLimitedLog, describe


def test_a_flood_is_cut_short_and_counted() -> None:
    now = [0.0]
    with structlog.testing.capture_logs() as lines:
        log = RateLimitedLog(lines=3, seconds=10, clock=lambda: now[0])
        for number in range(100):
            log.warning("client_dropped", number=number)
        log.warning("command_failed")
        now[0] = 10.0
        log.warning("client_dropped", number=100)
    assert [line.get("number") for line in lines] == [0, 1, 2, None, 100]
    assert lines[-1]["suppressed"] == log.suppressed == 97


def test_what_a_client_has_sent_is_cut_short() -> None:
    with structlog.testing.capture_logs() as lines:
        RateLimitedLog().warning("login_failed", user="x" * 60_000, count=3)
    assert lines == [{"event": "login_failed", "log_level": "warning", "user": "x" * 200, "count": 3}]


def test_an_error_is_described_in_one_short_line() -> None:
    try:
        int("x" * 1_000)
    except ValueError as error:
        told = describe(error)
    assert told.startswith("ValueError: invalid literal")
    assert "test_rate_limited_log.py:" in told
    assert len(told) < 300
