"""The calendar for any year: days since 1970 to year, month and day, and back; weeks after ISO 8601."""

from __future__ import annotations

from typing import NamedTuple

DAY = 86400
"""Seconds of a day."""


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
