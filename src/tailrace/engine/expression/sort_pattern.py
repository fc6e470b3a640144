"""The order of `$sortArray`: by whole elements, or by fields inside them."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.engine.expression.failures import Failure, check
from tailrace.engine.expression.numbers import as_double
from tailrace.engine.expression.ordering import compare
from tailrace.engine.expression.values import (
    MISSING,
    Document,
    Value,
    is_number,
    name_text,
)


def parse_sort_pattern(pattern: Value) -> Callable[[Value, Value], bool]:
    """Read the pattern and give the order: whether one value comes before another."""
    if type(pattern) is Document:
        parts = _parse_fields(pattern)
        return lambda left, right: _compare_fields(left, right, parts) < 0
    if is_number(pattern):
        sign = as_double(pattern)
        check(sign in (1, -1), 2942506, "The $sort element value must be either 1 or -1")
        return lambda left, right: compare(left, right) * sign < 0
    raise Failure(
        2942507,
        "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields",
    )


def _parse_fields(pattern: Document) -> list[tuple[list[bytes], int]]:
    check(
        pattern.names(),
        2942505,
        "BadValue: The sort pattern is empty when it should be a set of fields.",
    )
    parts = []
    for name, value in pattern.items():
        sign = as_double(value) if is_number(value) else 0.0
        check(
            sign in (1, -1),
            2942505,
            "BadValue: The sort element value must be either 1 or -1",
        )
        check(name, 2942505, "BadValue: The sort field cannot be empty")
        names = name.split(b".")
        check(
            all(names),
            2942505,
            "BadValue: The sort field is a dotted field but has an empty part: " + name_text(name),
        )
        parts.append((names, int(sign)))
    return parts


def _compare_fields(left: Value, right: Value, parts: list[tuple[list[bytes], int]]) -> int:
    for names, sign in parts:
        order = compare(_at(left, names), _at(right, names)) * sign
        if order:
            return order
    return 0


def _at(value: Value, names: list[bytes]) -> Value:
    """Follow a dotted path, with array positions as names; what is not there is null."""
    if type(value) is not Document:
        return None
    here: Value = value
    for name in names:
        if type(here) is Document:
            here = here.get(name)
        elif type(here) is list and name.isdigit():
            index = int(name)
            here = here[index] if index < len(here) else MISSING
        else:
            return None
    return None if here is MISSING else here
