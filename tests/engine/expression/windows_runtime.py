"""What a Windows build computes with: the C runtime below it, which is Wine's here, and Visual C++'s `std::sort`.

The server of 7.0 imports `sin`, `strtod` and the like from `ucrtbase.dll`, where a Linux build has glibc's: results
differ in the last digit, and in the bits of a NaN. Which of several equal elements `$sortArray` puts first is left to
the standard library, and the engine sorts as that of the Linux builds does.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tailrace.owned import run_guarded
from tailrace.stand.wine import WinePrefix, loader

T = TypeVar("T")
Less = Callable[[T, T], bool]

STRTOD_NAN = struct.unpack("<d", bytes.fromhex("ffffffffffffff7f"))[0]
"""What `strtod("nan")` of ucrtbase.dll gives: asked by a program under Wine 8.0. glibc sets the highest bit alone."""

_INSERTION_MAX, _NINTHER_ABOVE = 32, 40
_SCRIPT = """
function show(x) {
  if (x != x || x == 0) return "" + x;
  var sign = x < 0 ? "-" : "", e = 0;
  x = Math.abs(x);
  while (x >= 2) { x /= 2; e++; }
  while (x < 1) { x *= 2; e--; }
  var high = Math.floor(x * 67108864), low = (x * 67108864 - high) * 67108864;
  return sign + " " + high + " " + low + " " + e;
}
"""
"""A number as whole ones, which every way of printing gives exactly."""


def c_runtime(calls: Sequence[tuple[str, Sequence[float]]], folder: Path) -> list[float]:
    """Ask Wine's C runtime for `sin`, `atan2` and so on, by its JScript, whose `Math` calls them."""
    lines = []
    for name, arguments in calls:
        written = ", ".join(map(_written, arguments))
        lines.append(f"WScript.Echo(show(Math.{name}({written})));")
    (folder / "ask.js").write_text(_SCRIPT + "\n".join(lines))
    prefix = WinePrefix.make(folder / "prefix", folder)
    try:
        command = [str(loader()), "cscript.exe", "/nologo", prefix.windows_path(folder / "ask.js")]
        environment = {**os.environ, **prefix.environment}
        asked = run_guarded(
            command, timeout=240, capture_output=True, check=True, text=True, env=environment, cwd=folder
        )
    finally:
        prefix.remove()
    return [_number(line) for line in asked.stdout.splitlines()]


def _written(number: float) -> str:
    """Write a number as whole ones: its JScript reads no long decimals."""
    mantissa, exponent = math.frexp(number)
    high, low = divmod(int(math.ldexp(abs(mantissa), 53)), 1 << 26)
    return f"{math.copysign(1, number):.0f} * ({high} * 67108864 + {low}) * Math.pow(2, {exponent - 53})"


def _number(shown: str) -> float:
    parts = shown.split(" ")
    if len(parts) == 1:
        return float(shown)
    high, low, exponent = map(int, parts[1:])
    found = math.ldexp((high << 26) + low, exponent - 52)
    return -found if parts[0] else found


def visual_cpp_sort(values: list[T], less: Less[T]) -> list[T]:
    """Sort as Visual C++'s `std::sort` does: quicksort with a partition of three parts, small ones by insertion."""
    items = list(values)
    _sort(items, 0, len(items), less)
    return items


def _sort(items: list[T], first: int, last: int, less: Less[T]) -> None:
    """Leave out its heap sort of very uneven parts, which nothing here comes to."""
    while last - first > _INSERTION_MAX:
        low, high = _partition(items, first, last, less)
        if low - first < last - high:
            _sort(items, first, low, less)
            first = high
        else:
            _sort(items, high, last, less)
            last = low
    for index in range(first + 1, last):
        value, hole = items[index], index
        while hole > first and less(value, items[hole - 1]):
            items[hole] = items[hole - 1]
            hole -= 1
        items[hole] = value


def _partition(items: list[T], first: int, last: int, less: Less[T]) -> tuple[int, int]:
    """Give the range of the elements that equal the pivot: smaller ones are before it, greater ones behind."""

    def swap(a: int, b: int) -> None:
        items[a], items[b] = items[b], items[a]

    def equal(a: int, b: int) -> bool:
        return not less(items[a], items[b]) and not less(items[b], items[a])

    low = first + (last - first) // 2
    _guess_median(items, first, low, last - 1, less)
    high = low + 1
    while first < low and equal(low - 1, low):
        low -= 1
    while high < last and equal(high, low):
        high += 1
    up, down = high, low
    while True:
        while up < last and not less(items[up], items[low]):
            if not less(items[low], items[up]):
                swap(high, up)
                high += 1
            up += 1
        while first < down and not less(items[low], items[down - 1]):
            if not less(items[down - 1], items[low]):
                low -= 1
                swap(low, down - 1)
            down -= 1
        if down == first and up == last:
            return low, high
        if down == first:
            if high != up:
                swap(low, high)
            high += 1
            swap(low, up)
            low += 1
            up += 1
        elif up == last:
            down -= 1
            low -= 1
            swap(down, low)
            high -= 1
            swap(low, high)
        else:
            down -= 1
            swap(up, down)
            up += 1


def _guess_median(items: list[T], first: int, middle: int, last: int, less: Less[T]) -> None:
    if last - first <= _NINTHER_ABOVE:
        _median(items, first, middle, last, less)
        return
    step = (last - first + 1) // 8
    _median(items, first, first + step, first + 2 * step, less)
    _median(items, middle - step, middle, middle + step, less)
    _median(items, last - 2 * step, last - step, last, less)
    _median(items, first + step, middle, last - step, less)


def _median(items: list[T], a: int, b: int, c: int, less: Less[T]) -> None:
    """Put three elements in order."""
    if less(items[b], items[a]):
        items[a], items[b] = items[b], items[a]
    if less(items[c], items[b]):
        items[b], items[c] = items[c], items[b]
        if less(items[b], items[a]):
            items[a], items[b] = items[b], items[a]
