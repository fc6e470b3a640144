"""Dates as text: the format of `$dateToString`."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.timezones import UTC_ZONE, Parts, Zone, day_of_year, iso_week, iso_weekday

ISO_FORMAT = "%Y-%m-%dT%H:%M:%S.%LZ"
_TO_STRING = frozenset("dGHjLmMSwuUVYzZ%")
_FROM_STRING = frozenset("dGHLmMSuVYzZ%")


def check_format(text: str, *, parsing: bool) -> None:
    """Refuse a format with letters that do not belong there."""
    allowed = _FROM_STRING if parsing else _TO_STRING
    position = text.find("%")
    while position >= 0:
        check(position + 1 < len(text), 18535, "Unmatched '%' at end of format string")
        letter = text[position + 1]
        check(letter in allowed, 18536, f"Invalid format character '%{letter}' in format string")
        position = text.find("%", position + 2)


def week_of_year(parts: Parts) -> int:
    """Give the week of the year; weeks begin on Sunday, the days before the first one are week 0."""
    return (day_of_year(parts) - (iso_weekday(parts.days) % 7 + 1) + 7) // 7


def _padded(number: int, width: int) -> str:
    if not 0 <= number <= 9999:
        fail(
            18537,
            f"Could not convert date to string: date component was outside the supported range of 0-9999: {number}",
        )
    return f"{number:0{width}d}"


_FIELDS: dict[str, Callable[[Parts], str]] = {
    "Y": lambda parts: _padded(parts.year, 4),
    "m": lambda parts: _padded(parts.month, 2),
    "d": lambda parts: _padded(parts.day, 2),
    "H": lambda parts: _padded(parts.hour, 2),
    "M": lambda parts: _padded(parts.minute, 2),
    "S": lambda parts: _padded(parts.second, 2),
    "L": lambda parts: _padded(parts.millisecond, 3),
    "j": lambda parts: _padded(day_of_year(parts), 3),
    "w": lambda parts: _padded(iso_weekday(parts.days) % 7 + 1, 1),
    "U": lambda parts: _padded(week_of_year(parts), 2),
    "G": lambda parts: _padded(iso_week(parts.days)[0], 4),
    "V": lambda parts: _padded(iso_week(parts.days)[1], 2),
    "u": lambda parts: _padded(iso_weekday(parts.days), 1),
    "%": lambda _: "%",
}


def _offset(letter: str, seconds: int) -> str:
    sign, minutes = ("-" if seconds < 0 else "+"), abs(seconds) // 60
    if letter == "Z":
        return str(-minutes if seconds < 0 else minutes)
    return f"{sign}{_padded(minutes // 60, 2)}{_padded(minutes % 60, 2)}"


def format_date(text: str, millis: int, zone: Zone) -> str:
    """Write a date in a format that `check_format` has passed."""
    parts = zone.parts(millis)
    pieces = []
    characters = iter(text)
    for character in characters:
        if character != "%":
            pieces.append(character)
            continue
        letter = next(characters)
        if letter in "zZ":
            pieces.append(_offset(letter, zone.offset(millis // 1000)))
        else:
            pieces.append(_FIELDS[letter](parts))
    return "".join(pieces)


def format_iso(millis: int) -> str:
    """Write a date as ISO 8601 in UTC."""
    return format_date(ISO_FORMAT, millis, UTC_ZONE)
