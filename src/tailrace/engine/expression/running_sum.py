"""`$add` and `$subtract` since 7.0: number by number, in the widest type so far, with plain doubles.

Earlier servers add with a compensated sum (`numbers.Sum`), and let milliseconds grow in it.
"""

from __future__ import annotations

import math
from decimal import Decimal

from bson.decimal128 import Decimal128
from bson.int64 import Int64

from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.numbers import (
    DECIMAL128,
    INT64_MIN,
    decimal_to_long,
    double_to_decimal,
    fits_int64,
    int_or_long,
    to_decimal128,
)
from tailrace.engine.expression.values import Date, Value, is_number, type_name
from tailrace.raw.decimals import to_decimal
from tailrace.server_codes import OVERFLOW, TYPE_MISMATCH

_WIDTHS: dict[type, int] = {int: 0, Int64: 1, float: 2, Decimal128: 3}


class RunningSum:
    """A sum that has the type of the widest number so far, and is a date once a date was among them."""

    __slots__ = ("_is_date", "_kind", "_total")

    def __init__(self) -> None:
        self._total: int | float | Decimal = 0
        self._kind: type = int
        self._is_date = False

    def add(self, value: Value) -> None:
        """Add a number, or the one date; fails for what is neither."""
        if type(value) is Date:
            check(not self._is_date, 16612, "only one date allowed in an $add expression")
            self._total = _on_the_clock(whole_millis(self._total) + value.millis)
            self._is_date = True
        elif not is_number(value):
            fail(TYPE_MISMATCH, f"$add only supports numeric or date types, not {type_name(value)}")
        elif self._is_date:
            self._total = _on_the_clock(int(self._total) + whole_millis(_number(value)))
        else:
            self._add_number(value)

    def value(self) -> Value:
        """Give the sum."""
        if self._is_date:
            return Date(int(self._total))
        if self._kind is Decimal128:
            return to_decimal128(_decimal(self._total))
        if self._kind is float:
            return float(self._total)
        return int_or_long(int(self._total)) if self._kind is int else Int64(int(self._total))

    def _add_number(self, value: Value) -> None:
        if _WIDTHS[type(value)] > _WIDTHS[self._kind]:
            self._kind = type(value)
        number = _number(value)
        if self._kind is Decimal128:
            self._total = DECIMAL128.add(_decimal(self._total), _decimal(number))
        elif self._kind is float:
            self._total = float(self._total) + float(number)
        else:
            total = int(self._total) + int(number)
            if fits_int64(total):
                self._total = total
            else:
                self._kind, self._total = float, float(self._total) + float(number)


def minus_millis(date: Date, value: Value) -> Date:
    """Take a number of milliseconds from a date."""
    return Date(_on_the_clock(date.millis - _on_the_clock(whole_millis(_number(value)))))


def whole_millis(number: int | float | Decimal) -> int:
    """Round to milliseconds: a double half away from zero, a decimal half to even."""
    if isinstance(number, float):
        check(math.isfinite(number), OVERFLOW, "date overflow")
        rounded = math.floor(abs(number) + 0.5) if abs(number) < 2.0**52 else int(abs(number))
        return -rounded if number < 0 else rounded
    if isinstance(number, Decimal):
        rounded = decimal_to_long(number)
        check(rounded != INT64_MIN, OVERFLOW, "date overflow")
        return rounded
    return number


def _on_the_clock(millis: int) -> int:
    check(fits_int64(millis), OVERFLOW, "date overflow")
    return millis


def _number(value: Value) -> int | float | Decimal:
    if type(value) is Decimal128:
        decimal: Decimal = to_decimal(value)
        return decimal
    return float(value) if type(value) is float else int(value)


def _decimal(number: int | float | Decimal) -> Decimal:
    if isinstance(number, Decimal):
        return number
    return double_to_decimal(number) if isinstance(number, float) else Decimal(number)
