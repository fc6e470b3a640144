"""Date operators that take dates apart, put them together, and write or read them as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from tailrace.engine.expression import date_parsing
from tailrace.engine.expression.date_formatting import ISO_FORMAT, check_format, format_date, week_of_year
from tailrace.engine.expression.failures import Failure, check, fail
from tailrace.engine.expression.nodes import Evaluate, Node, Operator, Slots
from tailrace.engine.expression.numbers import as_long, is_int64
from tailrace.engine.expression.parsing import Arguments, Scope, Version, named, parse_object, parse_operand, parser
from tailrace.engine.expression.rendering import render
from tailrace.engine.expression.timezones import (
    DAY,
    UTC_ZONE,
    Parts,
    Zone,
    day_of_year,
    days_from_civil,
    days_from_iso_week,
    find_zone,
    iso_week,
    iso_weekday,
)
from tailrace.engine.expression.values import Date, Document, Value, expect, is_nullish, text_of, type_name
from tailrace.server_codes import CONVERSION_FAILURE


def is_date_like(value: Value) -> bool:
    """Say whether a value has a date in it."""
    return type(value) in (Date, Timestamp, ObjectId)


def as_millis(value: Value) -> int:
    """Give the date of a date, a timestamp or an ObjectId."""
    if type(value) is Date:
        return int(value.millis)
    if type(value) is Timestamp:
        return value.time * 1000
    if type(value) is ObjectId:
        return int.from_bytes(value.binary[:4], "big", signed=True) * 1000
    raise Failure(16006, f"can't convert from BSON type {type_name(value)} to Date")


def evaluate_zone(zone: Evaluate | None, slots: Slots) -> Zone | None:
    """Find the zone that an argument names; None when it is null."""
    if zone is None:
        return UTC_ZONE
    name = zone(slots)
    if is_nullish(name):
        return None
    expect(name, str, 40517, "timezone must evaluate to a string, found ")
    return find_zone(name)


# --- parts

_PARTS: dict[str, Callable[[Parts], Value]] = {
    "$year": lambda parts: parts.year,
    "$month": lambda parts: parts.month,
    "$dayOfMonth": lambda parts: parts.day,
    "$hour": lambda parts: parts.hour,
    "$minute": lambda parts: parts.minute,
    "$second": lambda parts: parts.second,
    "$millisecond": lambda parts: parts.millisecond,
    "$dayOfWeek": lambda parts: iso_weekday(parts.days) % 7 + 1,
    "$dayOfYear": day_of_year,
    "$week": week_of_year,
    "$isoDayOfWeek": lambda parts: iso_weekday(parts.days),
    "$isoWeek": lambda parts: iso_week(parts.days)[1],
    "$isoWeekYear": lambda parts: Int64(iso_week(parts.days)[0]),
}


@parser(*_PARTS)
def parse_date_part(name: str, value: Value, scope: Scope) -> Node:
    """Read a date alone, or with a zone: `{date, timezone}`."""
    date, zone = _date_and_zone(name, value, scope)
    part = _PARTS[name]

    def build(moment: Evaluate, where: Evaluate | None) -> Evaluate:
        def evaluate(slots: Slots) -> Value:
            given = moment(slots)
            if is_nullish(given):
                return None
            millis = as_millis(given)
            if where is None:
                return part(UTC_ZONE.parts(millis))
            zone_name = where(slots)
            if is_nullish(zone_name):
                return None
            if type(zone_name) is not str:
                fail(
                    40533,
                    f"{name} requires a string for the timezone argument, but was given a "
                    f"{type_name(zone_name)} ({render(zone_name)})",
                )
            return part(find_zone(zone_name).parts(millis))

        return evaluate

    return Operator(name, [date, zone], build)


def _date_and_zone(name: str, value: Value, scope: Scope) -> tuple[Node, Node | None]:
    if type(value) is list:
        message = f"{name} accepts exactly one argument if given an array, but was given "
        check(len(value) == 1, 40536, message + str(len(value)))
        return parse_operand(value[0], scope), None
    if type(value) is not Document:
        return parse_operand(value, scope), None
    names = value.names()
    if names and names[0].startswith(b"$"):
        return parse_object(value, scope), None
    nodes: dict[bytes, Node] = {}
    for key, argument in value.items():
        if key not in (b"date", b"timezone"):
            fail(40535, f'unrecognized option to {name}: "{text_of(key)}"')
        nodes[key] = parse_operand(argument, scope)
    if b"date" not in nodes:
        fail(40539, f"missing 'date' argument to {name}, provided: {name}: {render(value)}")
    return nodes[b"date"], nodes.get(b"timezone")


_TO_PARTS: Final = Arguments(
    names=("date", "timezone", "iso8601"),
    not_object=(40524, "$dateToParts only supports an object as its argument"),
    unknown=(40520, "Unrecognized argument to $dateToParts: {}"),
    required={"date": (40522, "Missing 'date' parameter to $dateToParts")},
)


@named("$dateToParts", _TO_PARTS)
def _build_date_to_parts(_: Version, date: Evaluate, timezone: Evaluate | None, iso: Evaluate | None) -> Evaluate:
    def evaluate(slots: Slots) -> Value:
        given = date(slots)
        zone = evaluate_zone(timezone, slots)
        if zone is None:
            return None
        as_week = False if iso is None else iso(slots)
        if is_nullish(as_week):
            return None
        expect(as_week, bool, 40521, "iso8601 must evaluate to a bool, found ")
        if is_nullish(given):
            return None
        return _parts_document(zone.parts(as_millis(given)), as_week)

    return evaluate


def _parts_document(parts: Parts, as_week: bool) -> Document:
    if as_week:
        year, week = iso_week(parts.days)
        fields: dict[bytes, Value] = {b"isoWeekYear": year, b"isoWeek": week, b"isoDayOfWeek": iso_weekday(parts.days)}
    else:
        fields = {b"year": parts.year, b"month": parts.month, b"day": parts.day}
    clock = {b"hour": parts.hour, b"minute": parts.minute, b"second": parts.second, b"millisecond": parts.millisecond}
    return Document.of({**fields, **clock})


_FROM_PARTS: Final = Arguments(
    names=(
        "year", "month", "day", "hour", "minute", "second", "millisecond", "isoWeekYear",
        "isoWeek", "isoDayOfWeek", "timezone",
    ),
    not_object=(40519, "$dateFromParts only supports an object as its argument"),
    unknown=(40518, "Unrecognized argument to $dateFromParts: {}"),
)  # fmt: skip
_PART_MIN, _PART_MAX = -32768, 32767


@parser("$dateFromParts")
def parse_date_from_parts(name: str, value: Value, scope: Scope) -> Node:
    """Read the parts of a date, by month or by ISO week."""
    given = set(_FROM_PARTS.read(value))
    check(
        given & {"year", "isoWeekYear"}, 40516, "$dateFromParts requires either 'year' or 'isoWeekYear' to be present"
    )
    check(
        not ("year" in given and given & {"isoWeekYear", "isoWeek", "isoDayOfWeek"}),
        40489,
        "$dateFromParts does not allow mixing natural dates with ISO dates",
    )
    check(
        not ("isoWeekYear" in given and given & {"year", "month", "day"}),
        40525,
        "$dateFromParts does not allow mixing ISO dates with natural dates",
    )
    return Operator(name, _FROM_PARTS.parse(value, scope), _build_date_from_parts)


def _build_date_from_parts(*operands: Evaluate | None) -> Evaluate:
    by_name = dict(zip(_FROM_PARTS.names, operands, strict=True))

    def part(slots: Slots, name: str, default: int, *, bounded: bool = True) -> int | None:
        operand = by_name[name]
        if operand is None:
            return default
        value = operand(slots)
        if is_nullish(value):
            return None
        if not is_int64(value):
            fail(40515, f"'{name}' must evaluate to an integer, found {type_name(value)} with value " + render(value))
        number = as_long(value)
        check(
            not bounded or _PART_MIN <= number <= _PART_MAX,
            31034,
            f"'{name}' must evaluate to a value in the range [{_PART_MIN}, {_PART_MAX}]; value "
            f"{number} is not in range",
        )
        return number

    def evaluate(slots: Slots) -> Value:
        clock = []
        for name, bounded in (
            ("hour", True), ("minute", True), ("second", False), ("millisecond", False),
        ):  # fmt: skip
            number = part(slots, name, 0, bounded=bounded)
            if number is None:
                return None
            clock.append(number)
        zone = evaluate_zone(by_name["timezone"], slots)
        if zone is None:
            return None
        names = ("year", "month", "day") if by_name["year"] is not None else ("isoWeekYear", "isoWeek", "isoDayOfWeek")
        calendar = []
        for name in names:
            default = 1970 if name == names[0] else 1
            number = part(slots, name, default, bounded=name != names[0])
            if number is None:
                return None
            calendar.append(number)
        check(
            1 <= calendar[0] <= 9999,
            40523 if names[0] == "year" else 31095,
            f"'{names[0]}' must evaluate to an integer in the range 1 to 9999, found {calendar[0]}",
        )
        count = days_from_civil if names[0] == "year" else days_from_iso_week
        hour, minute, second, millisecond = clock
        carried, rest = divmod(millisecond, 1000)
        local = count(*calendar) * DAY + hour * 3600 + minute * 60 + second + carried
        return Date(zone.to_utc(local) * 1000 + rest)

    return evaluate


# --- text

_TO_STRING: Final = Arguments(
    names=("date", "format", "timezone", "onNull"),
    not_object=(18629, "$dateToString only supports an object as its argument"),
    unknown=(18534, "Unrecognized argument to $dateToString: {}"),
    required={"date": (18628, "Missing 'date' parameter to $dateToString")},
)


def _format(operator: str, code: int, value: Value, *, parsing: bool) -> str | None:
    if is_nullish(value):
        return None
    if type(value) is not str:
        fail(
            code, f"{operator} requires that 'format' be a string, found: {type_name(value)} with value {render(value)}"
        )
    check_format(value, parsing=parsing)
    return value


@named("$dateToString", _TO_STRING)
def _build_date_to_string(
    _: Version, date: Evaluate, form: Evaluate | None, timezone: Evaluate | None, on_null: Evaluate | None
) -> Evaluate:
    def evaluate(slots: Slots) -> Value:
        given = date(slots)
        pattern: str | None = ISO_FORMAT
        if form is not None:
            pattern = _format("$dateToString", 18533, form(slots), parsing=False)
        zone = evaluate_zone(timezone, slots)
        if is_nullish(given):
            return on_null(slots) if on_null is not None else None
        if zone is None or pattern is None:
            return None
        return format_date(pattern, as_millis(given), zone)

    return evaluate


_FROM_STRING: Final = Arguments(
    names=("dateString", "timezone", "format", "onNull", "onError"),
    not_object=(40540, "$dateFromString only supports an object as an argument, found: {}"),
    unknown=(40541, "Unrecognized argument to $dateFromString: {}"),
    required={"dateString": (40542, "Missing 'dateString' parameter to $dateFromString")},
)


@named("$dateFromString", _FROM_STRING)
def _build_date_from_string(
    version: Version,
    source: Evaluate,
    timezone: Evaluate | None,
    form: Evaluate | None,
    on_null: Evaluate | None,
    on_error: Evaluate | None,
) -> Evaluate:
    def convert(text: Value, zone: Zone | None, pattern: str | None) -> Value:
        if type(text) is not str:
            fail(
                CONVERSION_FAILURE,
                f"$dateFromString requires that 'dateString' be a string, found: "
                f"{type_name(text)} with value {render(text)}",
            )
        if zone is None or (form is not None and pattern is None):
            return None
        if pattern is None:
            return Date(date_parsing.to_millis(text, date_parsing.parse(text), zone))
        parsed = date_parsing.parse_with_format(text, pattern)
        return Date(date_parsing.to_millis(text, parsed, zone))

    def evaluate(slots: Slots) -> Value:
        text = source(slots)
        pattern = None
        if form is not None:
            pattern = _format("$dateFromString", 40684, form(slots), parsing=True)
        zone = evaluate_zone(timezone, slots)
        if version >= (7, 0) and zone is find_zone("UTC"):
            zone = UTC_ZONE  # since 7.0 that name is no contradiction to an offset in the text
        if is_nullish(text):
            return on_null(slots) if on_null is not None else None
        try:
            return convert(text, zone, pattern)
        except Failure as failure:
            if failure.code == CONVERSION_FAILURE and on_error is not None:
                return on_error(slots)
            raise

    return evaluate
