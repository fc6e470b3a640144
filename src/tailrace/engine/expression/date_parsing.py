"""Text as dates: `$dateFromString`, with a format and without one.

Without a format the server guesses, with a grammar of sixty forms. Here are those that name a whole
date: ISO 8601 and its relatives, dates with slashes or dots, dates with the month as a word, RFC 2822, with
a time and an offset. Words that only the server's grammar knows (`tomorrow`, `+1 week`, `last monday of`)
are refused as not implemented, never misread; anything else is no date, for the server too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from tailrace.engine.expression.failures import fail, leave_to_server
from tailrace.engine.expression.timezones import (
    DAY,
    WEEKDAYS,
    Zone,
    days_from_civil,
    days_from_iso_week,
    days_in_month,
    iso_weekday,
)
from tailrace.server_codes import CONVERSION_FAILURE, NOT_IMPLEMENTED

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ABBREVIATIONS: Final = {
    "utc": 0, "gmt": 0, "z": 0, "est": -5, "edt": -4, "cst": -6, "cdt": -5, "mst": -7, "mdt": -6,
    "pst": -8, "pdt": -7, "cet": 1, "cest": 2, "eet": 2, "eest": 3, "wet": 0, "west": 1,
}  # fmt: skip
_SERVER_ONLY: Final = re.compile(
    r"now|today|midnight|noon|tomorrow|yesterday|ago|first|second|third|fourth|fifth|sixth|seventh|eighth?|ninth"
    r"|tenth|eleventh|twelfth|next|last|previous|this|secs?|mins?|minutes?|hours?|days?|weeks?|fortnights?|months?"
    r"|years?|weekdays?|back|front|seconds|m?secs?|ms|usecs?|of|[ivx]+|[a-z]|bst|ist|jst|kst|a[ec]?dt|a[ecw]?st|msk"
    r"|hst|ak[sd]t|nz[sd]t|n[sd]t"
)
"""Words that the server's grammar knows, and this one does not."""


@dataclass(slots=True)
class Parsed:
    """What a text said; None for what it left out."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    hour: int | None = None
    minute: int | None = None
    second: int | None = None
    micros: int = 0
    offset: int | None = None
    weekday: int | None = None


def _bad(text: str, reason: str) -> NoReturn:
    fail(CONVERSION_FAILURE, f"Error parsing date string '{text}'; {reason}")


def to_millis(text: str, parsed: Parsed, zone: Zone) -> int:
    """Make a date of what was read, in a zone that must not contradict it."""
    if parsed.hour is None and parsed.minute is None and parsed.second is None:
        parsed.hour = parsed.minute = parsed.second = 0
    numbers = (parsed.year, parsed.month, parsed.day, parsed.hour, parsed.minute, parsed.second)
    if any(number is None for number in numbers):
        fail(CONVERSION_FAILURE, f'an incomplete date/time string has been found, with elements missing: "{text}"')
    year, month, day, hour, minute, second = (number or 0 for number in numbers)
    if parsed.offset is not None and not zone.is_utc:
        fail(
            CONVERSION_FAILURE,
            "you cannot pass in a date/time string with GMT offset together with a timezone argument",
        )
    days = days_from_civil(year, month, day)
    if parsed.weekday is not None:
        days += (parsed.weekday - iso_weekday(days)) % 7
    local = days * DAY + hour * 3600 + minute * 60 + second
    seconds = local - parsed.offset if parsed.offset is not None else zone.to_utc(local)
    return seconds * 1000 + parsed.micros // 1000


def _check_ranges(text: str, parsed: Parsed) -> None:
    if parsed.day is not None and parsed.month is not None and parsed.year is not None:
        valid_month = 1 <= parsed.month <= 12
        if not valid_month or not 1 <= parsed.day <= days_in_month(parsed.year, parsed.month):
            _bad(text, "The parsed date was invalid")
    if parsed.hour is not None and not (
        parsed.hour <= 23 and (parsed.minute or 0) <= 59 and (parsed.second or 0) <= 59
    ):
        _bad(text, "The parsed time was invalid")


# --- with a format


class _Reader:
    """Reads a text along a format, as the server's library does."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.parsed = Parsed()
        self.iso: dict[str, int] = {}

    def rest(self) -> str:
        """Give what is left."""
        return self.text[self.position :]

    def number(self, least: int, most: int, *, skip: bool = False) -> int:
        """Read digits; where the library skips to the first digit, `skip` does so."""
        start = re.search(r"[0-9]", self.rest()) if skip else None
        if start is not None:
            self.position += start.start()
        match = re.match(rf"[0-9]{{{least},{most}}}", self.rest())
        if match is None:
            _bad(self.text, "a number could not be found")
        self.position += match.end()
        return int(match[0])

    def milliseconds(self) -> None:
        """Read up to three digits of a second's fraction."""
        before = self.position
        number = self.number(1, 3)
        self.parsed.micros = number * 10 ** (3 - (self.position - before)) * 1000

    def offset(self) -> None:
        """Read an offset such as `+0200`, or the name of UTC."""
        match = re.match(r"[ \t(]*(?:GMT)?([+-])([0-9:]+)\)*", self.rest())
        if match is not None:
            self.parsed.offset = _offset(self.text, match[1], match[2])
        else:
            match = re.match(r"[ \t(]*([A-Za-z]+)\)*", self.rest())
            if match is None or match[1].lower() not in _ABBREVIATIONS:
                _bad(self.text, "The timezone could not be found in the database")
            self.parsed.offset = _ABBREVIATIONS[match[1].lower()] * 3600
        self.position += match.end()

    def offset_in_minutes(self) -> None:
        """Read an offset such as `+120`."""
        match = re.match(r"([+-])([0-9]*)", self.rest())
        if match is None:
            _bad(self.text, "Invalid timezone offset in minutes")
        minutes = int(match[2] or 0)
        self.parsed.offset = (-minutes if match[1] == "-" else minutes) * 60
        self.position += match.end()

    def iso_part(self, name: str, width: int, low: int, high: int) -> None:
        """Read a part of an ISO week date."""
        number = self.number(1, width, skip=True)
        if not low <= number <= high:
            _bad(self.text, f"ISO {name} must be between {low} and {high}")
        self.iso[name] = number

    def field(self, letter: str) -> None:
        """Read the field a letter of the format stands for."""
        if letter in self._NUMBERS:
            name, least, most = self._NUMBERS[letter]
            setattr(self.parsed, name, self.number(least, most))
        else:
            self._OTHERS[letter](self)

    _NUMBERS: Final = {
        "Y": ("year", 1, 4),
        "m": ("month", 1, 2),
        "d": ("day", 1, 2),
        "H": ("hour", 1, 2),
        "M": ("minute", 2, 2),
        "S": ("second", 2, 2),
    }
    _OTHERS: Final[dict[str, Callable[[_Reader], None]]] = {
        "L": milliseconds,
        "z": offset,
        "Z": offset_in_minutes,
        "G": lambda self: self.iso_part("year", 4, 0, 9999),
        "V": lambda self: self.iso_part("week", 2, 1, 53),
        "u": lambda self: self.iso_part("weekday", 1, 1, 7),
    }

    def finish(self) -> Parsed:
        """Turn an ISO week date into a day; it may not be mixed with other dates."""
        parsed = self.parsed
        if self.iso:
            natural = (parsed.year, parsed.month, parsed.day)
            if parsed.year is not None or ("year" in self.iso and any(natural)):
                _bad(self.text, "Mixing of ISO dates with natural dates is not allowed")
            if "year" in self.iso:
                days = days_from_iso_week(self.iso["year"], self.iso.get("week", 1), self.iso.get("weekday", 1))
                parsed.year, parsed.month, parsed.day = 1970, 1, 1 + days
                self._default_time()
                return parsed
        self._default_time()
        _check_ranges(self.text, parsed)
        return parsed

    def _default_time(self) -> None:
        parsed = self.parsed
        if (parsed.hour, parsed.minute, parsed.second) != (None, None, None) or parsed.micros:
            parsed.hour = parsed.hour or 0
            parsed.minute = parsed.minute or 0
            parsed.second = parsed.second or 0


def parse_with_format(text: str, form: str) -> Parsed:
    """Read a text along a format that `check_format` has passed."""
    reader = _Reader(text)
    letters = iter(form)
    for letter in letters:
        if reader.position >= len(text):
            _bad(text, "Not enough data available to satisfy format")
        if letter != "%" or (letter := next(letters)) == "%":
            if text[reader.position] != letter:
                _bad(text, "Format literal not found")
            reader.position += 1
        else:
            reader.field(letter)
    if reader.position < len(text):
        _bad(text, "Trailing data")
    return reader.finish()


# --- without a format

_MONTH = r"(?P<name>jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec)[a-z]*"
_TIME = (
    r"t?(?P<hour>[01]?\d|2[0-4])[:.](?P<minute>[0-5]?\d)"
    r"(?:[:.](?P<second>[0-5]?\d|60)(?P<fraction>[.,:]\d+)?)?"
)
_FORMS: Final = [
    re.compile(form, re.ASCII | re.IGNORECASE)
    for form in (
        r"(?P<year>[+-]?\d{4})-(?P<month>0\d|1[0-2])-(?P<day>[0-2]\d|3[01])(?=t\d)t"
        r"(?P<hour>[01]\d|2[0-4]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d|60)(?P<fraction>\.\d+)?",
        r"(?P<year>\d{4})-?(?P<month>0\d|1[0-2])-?(?P<day>[0-2]\d|3[01])(?!\d)",
        r"(?P<year>\d{4})[-/](?P<month>0?\d|1[0-2])[-/](?P<day>[0-2]?\d|3[01])(?!\d)",
        r"(?P<month>0?\d|1[0-2])/(?P<day>[0-2]?\d|3[01])/(?P<year>\d{4})(?!\d)",
        r"(?P<day>[0-2]?\d|3[01])[.-](?P<month>0?\d|1[0-2])[.-](?P<year>\d{4})(?!\d)",
        rf"(?P<day>[0-2]?\d|3[01])(?:st|nd|rd|th)?[ \t.-]*{_MONTH}[ \t.-]*(?P<year>\d{{4}})(?!\d)",
        rf"{_MONTH}[ .\t-]*(?P<day>[0-2]?\d|3[01])[,.stndrh\t ]+(?P<year>\d{{4}})(?![\d:])",
        _TIME + r"(?P<half>[ \t]*[ap]\.?m\.?(?![a-z]))?(?!\d)",
        r"(?:gmt)?(?P<sign>[+-])(?P<offset>\d{1,2}(?::?\d{2})?)(?!\d)",
        r"\(?(?P<word>[a-z]+)\)?",
    )
]
_BLANK = re.compile(r"[ .,\t]")
_OTHER_FORMS: Final = re.compile(
    r"(?<![0-9a-z])(?:\d{4}[.-]?\d{3}(?!\w)|\d{4}-?W\d\d|\d{1,2}/[a-z]{3}/\d{4}|\d{4}:\d\d:\d\d "
    r"|[a-z]{3}-\d\d-\d|\d-[a-z]{3}-\d\d|\d{8}T|@-?\d|\d{1,3}[-./]\d{1,2}[-./]\d)",
    re.ASCII | re.IGNORECASE,
)
"""Forms of a whole date that the server reads, and `_FORMS` has not."""


def parse(text: str) -> Parsed:
    """Read a date in one of the forms that are understood."""
    parsed = Parsed()
    position = 0
    trimmed = text.strip(" \t\n")
    if not trimmed:
        _bad(text, "Empty string")
    while position < len(trimmed):
        matches = [match for form in _FORMS if (match := form.match(trimmed, position))]
        if not matches:
            if _BLANK.match(trimmed, position) is None:
                reason = f"Unexpected character '{trimmed[position]}'"
                known = trimmed[position].isalnum() or trimmed[position] in "+-@"
                _unknown(text, parsed, reason) if known else _bad(text, reason)
            position += 1
            continue
        best = max(matches, key=lambda match: match.end())
        _take(text, parsed, best.groupdict())
        position = best.end()
    if parsed.hour is not None:
        parsed.minute = parsed.minute or 0
        parsed.second = parsed.second or 0
    _check_ranges(text, parsed)
    return parsed


def _unknown(text: str, parsed: Parsed, reason: str) -> None:
    """Tell a text that is no date from one that only the server can read."""
    if parsed.day is not None or _OTHER_FORMS.search(text):
        leave_to_server(NOT_IMPLEMENTED, f"the form of the date string '{text}' is not supported")
    _bad(text, reason)


def _take(text: str, parsed: Parsed, found: dict[str, str | None]) -> None:
    if found.get("day"):
        if parsed.day is not None:
            _bad(text, "Double date specification")
        name = found.get("name")
        parsed.month = _MONTHS.index(name[:3].lower()) + 1 if name else int(found["month"] or 0)
        parsed.year, parsed.day = int(found["year"] or 0), int(found["day"] or 0)
    if found.get("hour"):
        if parsed.hour is not None:
            _bad(text, "Double time specification")
        _take_time(text, parsed, found)
    if found.get("offset"):
        _take_offset(text, parsed, _offset(text, found["sign"] or "+", found["offset"] or ""))
    if found.get("word"):
        _take_word(text, parsed, (found["word"] or "").lower())


def _take_time(text: str, parsed: Parsed, found: dict[str, str | None]) -> None:
    parsed.hour = int(found["hour"] or 0)
    parsed.minute = int(found["minute"] or 0)
    parsed.second = int(found["second"] or 0)
    if found.get("fraction"):
        parsed.micros = int((found["fraction"] or "")[1:7].ljust(6, "0"))
    half = found.get("half")
    if half:
        if not 1 <= parsed.hour <= 12:
            _bad(text, "hour out of range")
        parsed.hour = parsed.hour % 12 + (12 if "p" in half.lower() else 0)


def _take_offset(text: str, parsed: Parsed, offset: int) -> None:
    if parsed.offset is not None:
        _bad(text, "Double timezone specification")
    parsed.offset = offset


def _take_word(text: str, parsed: Parsed, word: str) -> None:
    if word == "t":
        return
    if word in _ABBREVIATIONS:
        _take_offset(text, parsed, _ABBREVIATIONS[word] * 3600)
    elif word in WEEKDAYS:
        parsed.weekday = WEEKDAYS[word]
    elif _SERVER_ONLY.fullmatch(word) or word[:3] in _MONTHS:
        _unknown(text, parsed, "The date is not complete")
    else:
        _bad(text, "The timezone could not be found in the database")


def _offset(text: str, sign: str, digits: str) -> int:
    """Read the digits of an offset: H, HH, H:MM, HH:MM, HHMM, HHMMSS or HH:MM:SS."""
    parts = digits.split(":") if ":" in digits else re.findall(r"^.{1,2}|..", digits.zfill(2))
    if len(digits) == 3 and ":" not in digits:
        parts = [digits[0], digits[1:]]
    if not parts or len(parts) > 3 or not all(part.isdecimal() for part in parts):
        _bad(text, "The timezone could not be found in the database")
    seconds = sum(int(part) * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    return -seconds if sign == "-" else seconds
