"""Windows of time: rolling ones, the day in a time zone, and for ever."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tailrace.errors import SettingsError

BEGINNING: Final = -(10**17)
"""Before every date that BSON can hold and that people use: where documents without a time are."""
_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FAR_FUTURE: Final = 10**18


@dataclass(frozen=True, slots=True)
class Span:
    """What a window covers at one moment: the times in (lower, upper], in milliseconds."""

    lower: int
    upper: int
    until: int | None = None
    """When the window jumps, as a day does at midnight; None when it only slides or stays."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window: `length` milliseconds up to now, or the day in `time_zone`, or, with neither, all time."""

    length: int | None = None
    time_zone: str | None = None

    @classmethod
    def parse(cls, text: str, time_zone: str | None = None) -> Window:
        """Read `90s`, `1m`, `24h`, `7d`, `today` (with a time zone, else UTC) or `forever`."""
        if text == "forever":
            return FOREVER
        if text == "today":
            return cls(time_zone=_known(time_zone or "UTC"))
        return cls(length=parse_duration(text))

    @property
    def name(self) -> str:
        """How its state is called."""
        if self.length is not None:
            return f"{self.length}ms"
        return f"today@{self.time_zone}" if self.time_zone else "forever"

    @property
    def is_forever(self) -> bool:
        """Whether nothing ever leaves it."""
        return self.length is None and self.time_zone is None

    @property
    def longest(self) -> int:
        """How far back it can reach; a day has up to 25 hours."""
        return self.length if self.length is not None else 25 * _UNITS["h"]

    def span(self, at: int) -> Span:
        """Give what it covers at a moment."""
        if self.length is not None:
            return Span(at - self.length, at)
        if self.time_zone is None:
            return Span(-_FAR_FUTURE, _FAR_FUTURE)
        midnight, next_midnight = _day(at, ZoneInfo(self.time_zone))
        return Span(midnight - 1, at, next_midnight)


FOREVER: Final = Window()


def parse_duration(text: str) -> int:
    """Read `90s`, `1m`, `24h` or `7d` as milliseconds."""
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None or not int(found[1]):
        raise SettingsError(f"{text!r} is not a duration", hint="Write for example 90s, 1m, 24h, 7d, today or forever.")
    return int(found[1]) * _UNITS[found[2]]


def _known(zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise SettingsError(f"there is no time zone {zone!r}", hint="Write for example Europe/Berlin.") from None
    return zone


def _day(at: int, zone: ZoneInfo) -> tuple[int, int]:
    """Give the midnights before and after a moment; days of 23 and 25 hours are as long as they are."""
    moment = datetime.fromtimestamp(at / 1000, UTC).astimezone(zone)
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    tomorrow = (midnight + timedelta(days=1)).replace(fold=0)
    return round(midnight.timestamp() * 1000), round(tomorrow.timestamp() * 1000)
