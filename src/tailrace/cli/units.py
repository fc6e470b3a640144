"""Durations and sizes as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from bson.timestamp import Timestamp

_DAY, _HOUR, _MINUTE = 86_400, 3_600, 60


def duration(seconds: float) -> str:
    """Give a duration in its two largest units: `3 d 4 h`, `2 h 5 min`, `45 s`."""
    whole = round(seconds)
    if whole >= _DAY:
        return _two(whole, _DAY, "d", _HOUR, "h")
    if whole >= _HOUR:
        return _two(whole, _HOUR, "h", _MINUTE, "min")
    if whole >= _MINUTE:
        return _two(whole, _MINUTE, "min", 1, "s")
    return f"{whole} s"


def _two(whole: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = whole % large // small
    return f"{whole // large:,} {large_name}" + (f" {rest} {small_name}" if rest else "")


def size(count: float) -> str:
    """Give a number of bytes with three digits: `1.50 GB`, `48.0 MB`, `999 B`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1_000
    if unit == "B" or count >= 99.95:
        return f"{count:,.0f} {unit}"
    return f"{count:.1f} {unit}" if count >= 9.995 else f"{count:.2f} {unit}"


def shown_time(time: Timestamp | None) -> str:
    """Give a cluster time as date, time and increment."""
    if time is None:
        return "unknown"
    return f"{datetime.fromtimestamp(time.time, UTC):%Y-%m-%d %H:%M:%S}Z +{time.inc}"
