"""Cluster times as people write them."""

from __future__ import annotations

import time

import pytest

from tailrace.raw.cluster_time import ClusterTime

NOON = 1_777_636_800


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (str(NOON), ClusterTime.of(NOON)),
        (f"{NOON}:7", ClusterTime.of(NOON, 7)),
        (f"{NOON},7", ClusterTime.of(NOON, 7)),
        ("2026-05-01T12:00:00Z", ClusterTime.of(NOON)),
        ("2026-05-01T14:00:00+02:00", ClusterTime.of(NOON)),
        ("2026-05-01T12:00", ClusterTime.of(NOON)),
        ("1970-01-01", ClusterTime.of(0)),
        (f"{2**32 - 1}:{2**32 - 1}", ClusterTime.of(2**32 - 1, 2**32 - 1)),
    ],
)
def test_a_time_is_read(text, expected, monkeypatch):
    """Whatever the time zone of the machine: a date without one is UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert ClusterTime.parse(text) == expected
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "1:", "1,2,3", str(2**32), f"1:{2**32}", "1969-12-31", "2107-01-01"]
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        ClusterTime.parse(text)
