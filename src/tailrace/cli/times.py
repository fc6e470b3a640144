"""Cluster times for people."""

from __future__ import annotations

from datetime import UTC, datetime

from bson.timestamp import Timestamp


def shown_time(time: Timestamp | None) -> str:
    """Give a cluster time as date, time and increment."""
    if time is None:
        return "unknown"
    return f"{datetime.fromtimestamp(time.time, UTC):%Y-%m-%d %H:%M:%S}Z +{time.inc}"
