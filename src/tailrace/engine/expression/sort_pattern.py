"""The order of `$sortArray`: by whole elements, or by fields inside them.

Elements that compare equal end up where the sort of the C++ library puts them that servers are built with. It is
quicksort with the median of three as pivot, down to runs of 16, and then insertion sort over everything. Up to 16
elements it keeps equal ones in their order; beyond that it does not, and a client can see that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from tailrace.engine.expression.failures import Failure, check
from tailrace.engine.expression.numbers import as_double
from tailrace.engine.expression.ordering import compare
from tailrace.engine.expression.values import MISSING, Document, Value, is_number, text_of


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
        2942507, "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields"
    )


def _parse_fields(pattern: Document) -> list[tuple[list[bytes], int]]:
    check(pattern.names(), 2942505, "BadValue: The sort pattern is empty when it should be a set of fields.")
    parts = []
    for name, value in pattern.items():
        sign = as_double(value) if is_number(value) else 0.0
        check(sign in (1, -1), 2942505, "BadValue: The sort element value must be either 1 or -1")
        check(name, 2942505, "BadValue: The sort field cannot be empty")
        names = name.split(b".")
        check(all(names), 2942505, "BadValue: The sort field is a dotted field but has an empty part: " + text_of(name))
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


T = TypeVar("T")
Less = Callable[[T, T], bool]
_RUN: Final = 16


def introsort(values: list[T], less: Less[T]) -> list[T]:
    """Give a sorted copy."""
    items = list(values)
    _partition_runs(items, 0, len(items), 2 * max(len(items).bit_length() - 1, 0), less)
    for index in range(1, len(items)):
        _insert(items, index, less)
    return items


def _partition_runs(items: list[T], first: int, last: int, depth: int, less: Less[T]) -> None:
    while last - first > _RUN:
        if depth == 0:
            # The library falls back to a heap here, which takes an order made to hurt it.
            items[first:last] = _merged(items[first:last], less)
            return
        depth -= 1
        cut = _partition(items, first, last, less)
        _partition_runs(items, cut, last, depth, less)
        last = cut


def _merged(items: list[T], less: Less[T]) -> list[T]:
    if len(items) < 2:
        return items
    middle = len(items) // 2
    left, right = _merged(items[:middle], less), _merged(items[middle:], less)
    merged: list[T] = []
    while left and right:
        merged.append(right.pop(0) if less(right[0], left[0]) else left.pop(0))
    return merged + left + right


def _partition(items: list[T], first: int, last: int, less: Less[T]) -> int:
    _median_to_first(items, first, first + 1, first + (last - first) // 2, last - 1, less)
    pivot = items[first]
    low, high = first + 1, last
    while True:
        while less(items[low], pivot):
            low += 1
        high -= 1
        while less(pivot, items[high]):
            high -= 1
        if low >= high:
            return low
        items[low], items[high] = items[high], items[low]
        low += 1


def _median_to_first(items: list[T], target: int, a: int, b: int, c: int, less: Less[T]) -> None:
    if less(items[a], items[b]):
        median = b if less(items[b], items[c]) else c if less(items[a], items[c]) else a
    else:
        median = a if less(items[a], items[c]) else c if less(items[b], items[c]) else b
    items[target], items[median] = items[median], items[target]


def _insert(items: list[T], index: int, less: Less[T]) -> None:
    """Move an element down to its place among those before it."""
    value = items[index]
    while index > 0 and less(value, items[index - 1]):
        items[index] = items[index - 1]
        index -= 1
    items[index] = value
