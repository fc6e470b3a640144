"""Time zones as the server understands them: names of the Olson database, and offsets from UTC.

Local times that a clock change makes ambiguous, or skips, are resolved as the server's library does:
it looks at the offset at the local time taken as UTC, and at the time that offset gives.
Clock changes go on for ever here; the library of servers before 5.0 knows none after 2037. Servers before 6.0 take the
first of two like hours west of Greenwich when a date is made of its parts; later ones take the second, as is done here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from tailrace.engine.expression.failures import fail

DAY = 86400
"""Seconds of a day."""
WEEKDAYS = {
    name: number
    for number, full in enumerate(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"), 1)
    for name in (full, full[:3])
}
"""The days of a week, as ISO 8601 numbers them, by their names and the first letters of these."""


class Parts(NamedTuple):
    """A local time, taken apart; `days` counts from 1970."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    millisecond: int
    days: int


def days_from_civil(year: int, month: int, day: int) -> int:
    """Count the days from 1970-01-01; months and days may lie outside their year or month."""
    year += (month - 1) // 12
    month = (month - 1) % 12 + 1
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146097 + day_of_era - 719468 + day - 1


def civil_from_days(days: int) -> tuple[int, int, int]:
    """Give year, month and day of a day counted from 1970-01-01."""
    era, day_of_era = divmod(days + 719468, 146097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_index = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_index + 2) // 5 + 1
    month = month_index + 3 if month_index < 10 else month_index - 9
    return year_of_era + era * 400 + (month <= 2), month, day


def split(local_seconds: int, millisecond: int) -> Parts:
    """Take a local time apart."""
    days, rest = divmod(local_seconds, DAY)
    hour, rest = divmod(rest, 3600)
    return Parts(*civil_from_days(days), hour, rest // 60, rest % 60, millisecond, days)


def days_in_month(year: int, month: int) -> int:
    """Count the days of a month."""
    return days_from_civil(year, month + 1, 1) - days_from_civil(year, month, 1)


def day_of_year(parts: Parts) -> int:
    """Give the number of a day in its year, from 1."""
    return parts.days - days_from_civil(parts.year, 1, 1) + 1


def iso_weekday(days: int) -> int:
    """Give the day of the week: 1 for Monday to 7 for Sunday."""
    return (days + 3) % 7 + 1


def iso_week(days: int) -> tuple[int, int]:
    """Give the year and the week that a day belongs to after ISO 8601."""
    thursday = days - iso_weekday(days) + 4
    year = civil_from_days(thursday)[0]
    return year, (thursday - days_from_civil(year, 1, 1)) // 7 + 1


def days_from_iso_week(year: int, week: int, weekday: int) -> int:
    """Count the days from 1970-01-01 to a day given by ISO year, week and weekday."""
    fourth = days_from_civil(year, 1, 4)
    return fourth - iso_weekday(fourth) + 7 * (week - 1) + weekday


_OFFSET = re.compile(r"([+-])(\d\d)(?::?(\d\d))?\Z", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Python's calendar is shorter than BSON's. The calendar repeats every 400 years, so later times have their like
# in the years from 2400 on; before the first year nothing changes.
_FIRST = -62_000_000_000
_LAST = 253_000_000_000
_CYCLE = 146_097 * DAY
_CYCLE_START = 13_569_465_600


class Zone:
    """A time zone; without an Olson name it is a fixed offset."""

    __slots__ = ("_info", "_offset")

    def __init__(self, info: ZoneInfo | None = None, offset: int = 0) -> None:
        self._info = info
        self._offset = offset

    @property
    def is_utc(self) -> bool:
        """Say whether no zone was given, or an offset of nothing."""
        return self._info is None and self._offset == 0

    def _local(self, seconds: int) -> datetime:
        if seconds > _LAST:
            seconds = _CYCLE_START + (seconds - _CYCLE_START) % _CYCLE
        return (_EPOCH + timedelta(seconds=max(seconds, _FIRST))).astimezone(self._info)

    def offset(self, seconds: int) -> int:
        """Give the offset from UTC, in seconds, at a time."""
        if self._info is None:
            return self._offset
        delta = self._local(seconds).utcoffset()
        return int(delta.total_seconds()) if delta is not None else 0

    def is_summer(self, seconds: int) -> bool:
        """Say whether daylight saving time is in force."""
        return self._info is not None and bool(self._local(seconds).dst())

    def parts(self, millis: int) -> Parts:
        """Take a date apart in this zone."""
        seconds, millisecond = divmod(millis, 1000)
        return split(seconds + self.offset(seconds), millisecond)

    def to_utc(self, local: int, *, from_summer: bool | None = None) -> int:
        """Give the time of local seconds.

        `from_summer` tells how the clock stood before the date was moved; for a date that is made anew the
        server takes the clock of 1970.
        """
        if self._info is None:
            return local - self._offset
        current = self.offset(local)
        actual = self.offset(local - current)
        begin = local - current
        if current == actual:
            is_summer = self.is_summer(0) if from_summer is None else from_summer
            transition = self._transition_near(local, current, is_summer)
            if transition is not None:
                actual, begin = transition
        if current == actual:
            return local - current
        change = self._last_change(begin)
        skipped = change + (current - actual) <= local - actual < change
        return local - (current if skipped else actual)

    def _transition_near(self, local: int, current: int, from_summer: bool) -> tuple[int, int] | None:
        """See whether a clock change lies just behind or ahead of an ambiguous time."""
        summer_now = self.is_summer(local)
        moment = local - current
        if current >= 0 and from_summer and not summer_now:
            earlier = self.offset(moment - 7200)
            if earlier != current and local - earlier < self._last_change(moment):
                return earlier, moment - 7200
        elif current <= 0 and summer_now and not from_summer:
            later = self.offset(moment + 7200)
            if later != current and local - later >= self._last_change(moment + 7200):
                return later, moment + 7200
        return None

    def _last_change(self, seconds: int) -> int:
        """Find the last clock change at or before a time, as far back as two days."""
        low, high = seconds - 172800, seconds
        here = self.offset(high)
        if self.offset(low) == here:
            return low
        while high - low > 1:
            middle = (low + high) // 2
            if self.offset(middle) == here:
                high = middle
            else:
                low = middle
        return high


UTC_ZONE = Zone()


@cache
def _names() -> frozenset[str]:
    return frozenset(available_timezones())


@lru_cache(maxsize=1024)
def find_zone(name: str) -> Zone:
    """Find a zone by its Olson name or its offset, such as `+02:00`."""
    if name in _names():
        return Zone(ZoneInfo(name))
    match = _OFFSET.match(name)
    if match is None:
        fail(40485, f'unrecognized time zone identifier: "{name}"')
    sign, hours, minutes = match.groups()
    offset = int(hours) * 3600 + int(minutes or 0) * 60
    return Zone(offset=-offset if sign == "-" else offset)
