"""The sort of the C++ library that servers are built with: elements that compare equal end up where it puts them.

It is quicksort with the median of three as pivot, down to runs of 16, and then insertion sort over everything. Up to
16 elements it keeps equal ones in their order; beyond that it does not, and a client can see that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

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
