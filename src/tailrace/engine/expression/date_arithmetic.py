"""`$dateAdd`, `$dateSubtract`, `$dateDiff` and `$dateTrunc`: counting in units of the calendar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bson.int64 import Int64

from tailrace.engine.expression.dates import as_millis, evaluate_zone, is_date_like
from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.nodes import Evaluate, Node, Operator, Slots
from tailrace.engine.expression.numbers import INT64_MIN, as_long, fits_int64, is_int64, quotient
from tailrace.engine.expression.parsing import Arguments, Scope, Version, named, parser
from tailrace.engine.expression.rendering import render
from tailrace.engine.expression.timezones import DAY, WEEKDAYS, Parts, Zone, days_from_civil, days_in_month, iso_weekday
from tailrace.engine.expression.values import Date, Value, expect, is_nullish, type_name
from tailrace.server_codes import DURATION_OVERFLOW, FAILED_TO_PARSE

_CLOCK_SECONDS: Final = {"hour": 3600, "minute": 60, "second": 1}
_MONTHS: Final = {"year": 12, "quarter": 3, "month": 1}
_UNITS: Final = frozenset({*_CLOCK_SECONDS, *_MONTHS, "week", "day", "millisecond"})
_MOST_DAYS = (2**64 - 1) // 86_400_000 + 1
_MOST_YEARS = _MOST_DAYS // 365 + 1
_MOST: Final = {
    "year": _MOST_YEARS, "quarter": _MOST_YEARS * 4, "month": _MOST_YEARS * 12,
    "week": _MOST_DAYS // 7, "day": _MOST_DAYS, "hour": _MOST_DAYS * 24,
    "minute": _MOST_DAYS * 24 * 60, "second": _MOST_DAYS * 24 * 3600,
}  # fmt: skip


def add_to_date(millis: int, unit: str, amount: int, zone: Zone) -> int:
    """Move a date by units; a day that the new month does not have becomes its last."""
    if unit == "millisecond":
        check(fits_int64(millis + amount), DURATION_OVERFLOW, "Overflow casting from a lower-precision duration")
        return millis + amount
    message = f"invalid dateAdd 'amount' parameter value: {amount} {unit}"
    check(-_MOST[unit] < amount < _MOST[unit], 5976500, message)
    # The server splits off milliseconds towards zero and seconds downwards: before 1970 a date with
    # milliseconds loses a second.
    seconds = millis // 1000
    rest = millis % 1000 if millis >= 0 else -(-millis % 1000)
    if unit in _CLOCK_SECONDS:
        moved = seconds + amount * _CLOCK_SECONDS[unit]
    else:
        moved = _shift_days(zone, seconds, _days_to_add(zone.parts(millis), unit, amount))
    check(fits_int64(moved * 1000), 5166406, "dateAdd overflowed")
    return moved * 1000 + rest


def _days_to_add(parts: Parts, unit: str, amount: int) -> int:
    if unit not in _MONTHS:
        return amount * 7 if unit == "week" else amount
    months = parts.year * 12 + parts.month - 1 + amount * _MONTHS[unit]
    year, month = months // 12, months % 12 + 1
    day = min(parts.day, days_in_month(year, month))
    return days_from_civil(year, month, day) - parts.days


def _shift_days(zone: Zone, seconds: int, days: int) -> int:
    local = seconds + zone.offset(seconds) + days * DAY
    return zone.to_utc(local, from_summer=zone.is_summer(seconds))


_ADD_NAMES = ("startDate", "unit", "amount", "timezone")


@parser("$dateAdd", "$dateSubtract", since=(5, 0))
def parse_date_add(name: str, value: Value, scope: Scope) -> Node:
    """Read a date, a unit and how many of it."""
    missing = (5166402, f"{name} requires startDate, unit, and amount to be present")
    arguments = Arguments(
        names=_ADD_NAMES,
        in_order=True,
        not_object=(5166400, f"{name} expects an object as its argument"),
        unknown=(
            5166401,
            f"Unrecognized argument to {name}: {{}}. Expected arguments are startDate, unit, "
            "amount, and optionally timezone.",
        ),
        required={"startDate": missing, "unit": missing, "amount": missing},
    )
    return Operator(name, arguments.parse(value, scope), _date_add_builder(name))


def _date_add_builder(name: str) -> Callable[..., Evaluate]:
    def build(start: Evaluate, unit: Evaluate, amount: Evaluate, timezone: Evaluate | None) -> Evaluate:
        def evaluate(slots: Slots) -> Value:
            values = _present((start, unit, amount), slots)
            zone = None if values is None else evaluate_zone(timezone, slots)
            if values is None or zone is None:
                return None
            return Date(_moved(name, values[0], values[1], values[2], zone))

        return evaluate

    return build


def _moved(name: str, date: Value, unit: Value, amount: Value, zone: Zone) -> int:
    message = f"{name} requires startDate to be convertible to a date"
    check(is_date_like(date), 5166403, message)
    check(type(unit) is str, 5166404, f"{name} expects string defining the time unit")
    check(unit in _UNITS, FAILED_TO_PARSE, f"unknown time unit value: {unit}")
    check(is_int64(amount), 5166405, f"{name} expects integer amount of time units")
    count = as_long(amount)
    if name == "$dateSubtract":
        message = f"invalid $dateSubtract 'amount' parameter value: {count}"
        check(count != INT64_MIN, 6045000, message)
        count = -count
    return add_to_date(as_millis(date), unit, count, zone)


def _unit(name: str, value: Value, version: Version) -> str:
    expect(value, str, 5439013, f"{name} requires 'unit' to be a string, but got ")
    if value not in _UNITS and version >= (7, 0):
        why = f"unknown time unit value: {value}"
        fail(FAILED_TO_PARSE, f"{name} parameter 'unit' value parsing failed :: caused by :: {why}")
    message = f"{name} parameter 'unit' value cannot be recognized as a time unit: {value}"
    check(value in _UNITS, 5439014, message)
    return str(value)


def _start_of_week(name: str, value: Value) -> int:
    expect(value, str, 5439015, f"{name} requires 'startOfWeek' to be a string, but got ")
    message = f"{name} parameter 'startOfWeek' value cannot be recognized as a day of a week: "
    check(value.lower() in WEEKDAYS, 5439016, message + value)
    return WEEKDAYS[value.lower()]


def _units_between(start: Parts, end: Parts, unit: str, first_day: int) -> int:
    """Count how often the calendar enters a new unit between two local times."""
    if unit == "week":
        weekday = (iso_weekday(start.days) - first_day) % 7 - (iso_weekday(end.days) - first_day) % 7
        return quotient(end.days - start.days + weekday, 7)
    if unit == "day":
        return end.days - start.days
    years = end.year - start.year
    if unit == "year":
        return years
    if unit == "quarter":
        return (end.month - 1) // 3 - (start.month - 1) // 3 + years * 4
    return end.month - start.month + years * 12


def _difference(start: int, end: int, unit: str, zone: Zone, first_day: int, version: Version) -> int:
    if unit == "millisecond":
        check(fits_int64(end - start), 5166308, "dateDiff overflowed")
        return end - start
    before, after = zone.parts(start), zone.parts(end)
    if unit not in _CLOCK_SECONDS:
        return _units_between(before, after, unit, first_day)
    hours = after.hour - before.hour + (after.days - before.days) * 24
    turned = zone.offset(start // 1000) - zone.offset(end // 1000)
    if version < (5, 1):
        # Older servers knew of clock changes by whole hours only.
        hours, turned = hours + quotient(turned, 3600), 0
    if unit == "hour":
        return hours + quotient(turned, 3600)
    minutes = after.minute - before.minute + hours * 60
    if unit == "minute":
        return minutes + quotient(turned, 60)
    return after.second - before.second + minutes * 60 + turned


_DIFF: Final = Arguments(
    names=("startDate", "endDate", "unit", "timezone", "startOfWeek"),
    from_last=True,
    not_object=(5166301, "$dateDiff only supports an object as its argument"),
    unknown=(5166302, "Unrecognized argument to $dateDiff: {}"),
    required={
        "startDate": (5166303, "Missing 'startDate' parameter to $dateDiff"),
        "endDate": (5166304, "Missing 'endDate' parameter to $dateDiff"),
        "unit": (5166305, "Missing 'unit' parameter to $dateDiff"),
    },
)


@named("$dateDiff", _DIFF, since=(5, 0))
def _build_date_diff(
    version: Version,
    start: Evaluate,
    end: Evaluate,
    unit: Evaluate,
    timezone: Evaluate | None,
    start_of_week: Evaluate | None,
) -> Evaluate:
    def evaluate(slots: Slots) -> Value:
        values = _present((start, end, unit), slots)
        if values is None:
            return None
        first, last, name = values
        week = _week_argument(start_of_week, name, slots)
        zone = None if week is None else evaluate_zone(timezone, slots)
        if zone is None:
            return None
        for value, argument in ((first, "startDate"), (last, "endDate")):
            if not is_date_like(value):
                fail(5166307, f"$dateDiff requires '{argument}' to be a date, but got {type_name(value)}")
        whole_unit = _unit("$dateDiff", name, version)
        first_day = _start_of_week("$dateDiff", week)
        return Int64(_difference(as_millis(first), as_millis(last), whole_unit, zone, first_day, version))

    return evaluate


def _present(operands: tuple[Evaluate, ...], slots: Slots) -> list[Value] | None:
    """Compute operands one by one; None at the first that gives nothing."""
    values = []
    for operand in operands:
        value = operand(slots)
        if is_nullish(value):
            return None
        values.append(value)
    return values


def _week_argument(operand: Evaluate | None, unit: Value, slots: Slots) -> Value:
    """Compute `startOfWeek`, which matters to weeks only; Sunday when it was not given."""
    if operand is None or unit != "week":
        return "sunday"
    value = operand(slots)
    return None if is_nullish(value) else value


_TRUNC: Final = Arguments(
    names=("date", "unit", "binSize", "timezone", "startOfWeek"),
    from_last=True,
    not_object=(5439007, "$dateTrunc only supports an object as its argument"),
    unknown=(
        5439008,
        "Unrecognized argument to $dateTrunc: {}. Expected arguments are date, unit, and "
        "optionally, binSize, timezone, startOfWeek",
    ),
    required={
        "date": (5439009, "Missing 'date' parameter to $dateTrunc"),
        "unit": (5439010, "Missing 'unit' parameter to $dateTrunc"),
    },
)


@named("$dateTrunc", _TRUNC, since=(5, 0))
def _build_date_trunc(
    version: Version,
    date: Evaluate,
    unit: Evaluate,
    bin_size: Evaluate | None,
    timezone: Evaluate | None,
    start_of_week: Evaluate | None,
) -> Evaluate:
    def evaluate(slots: Slots) -> Value:
        values = _present((date, unit, bin_size) if bin_size is not None else (date, unit), slots)
        if values is None:
            return None
        moment, name, *size = values
        week = _week_argument(start_of_week, name, slots)
        zone = None if week is None else evaluate_zone(timezone, slots)
        if zone is None:
            return None
        if not is_date_like(moment):
            fail(5439012, f"$dateTrunc requires 'date' to be a date, but got {type_name(moment)}")
        whole_unit = _unit("$dateTrunc", name, version)
        count = _bin_size(size[0]) if size else 1
        first_day = _start_of_week("$dateTrunc", week)
        return Date(_truncated(as_millis(moment), whole_unit, count, zone, first_day))

    return evaluate


def _bin_size(value: Value) -> int:
    if not is_int64(value):
        fail(
            5439017,
            f"$dateTrunc requires 'binSize' to be a 64-bit integer, but got value "
            f"'{render(value)}' of type {type_name(value)}",
        )
    size = as_long(value)
    message = f"$dateTrunc requires 'binSize' to be greater than 0, but got value {size}"
    check(size > 0, 5439018, message)
    return size


_REFERENCE = 946_684_800
"""2000-01-01, a Saturday: where the bins are counted from."""


def _truncated(millis: int, unit: str, size: int, zone: Zone, first_day: int) -> int:
    reference = (_REFERENCE - zone.offset(_REFERENCE)) * 1000
    if unit in _CLOCK_SECONDS or unit == "millisecond":
        bin_millis = size * _CLOCK_SECONDS.get(unit, 0) * 1000 or size
        check(fits_int64(bin_millis), 5439002, "dateTrunc overflowed")
        check(fits_int64(millis - reference), 5439000, "dateTrunc overflowed")
        result = millis - (millis - reference) % bin_millis
        check(fits_int64(result), 5439001, "dateTrunc overflowed")
        return result
    check(size <= 100_000_000_000, 5439006, "dateTrunc unsupported binSize value")
    day = days_from_civil(2000, 1, 1)
    if unit == "week":
        later = (7 - (6 - first_day) % 7) % 7
        reference += later * DAY * 1000
        day += later
    start = Parts(2000, 1, 1, 0, 0, 0, 0, day)
    distance = _units_between(start, zone.parts(millis), unit, first_day)
    return add_to_date(reference, unit, distance - distance % size, zone)
