"""Numbers as the server computes with them: int32 grows to int64, int64 to double, decimal stays decimal.

A decimal has 34 digits and rounds half to even; a double becomes a decimal of 15 digits, because that is
how many a double is sure of. Sums of doubles are compensated, so their order seldom matters.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from typing import Final

from bson.decimal128 import Decimal128
from bson.int64 import Int64

from tailrace.engine.expression.failures import Failure, fail
from tailrace.engine.expression.values import Value, type_name
from tailrace.raw.decimals import to_decimal

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

DECIMAL128: Final = decimal.Context(
    prec=34, rounding=decimal.ROUND_HALF_EVEN, Emin=-6143, Emax=6144, capitals=1, clamp=1, traps=[]
)
"""Arithmetic of IEEE 754 decimal128; nothing is trapped, as on the server."""
_EXACT = decimal.Context(prec=1200, Emin=-9999, Emax=9999, traps=[])


def to_decimal128(number: Decimal) -> Decimal128:
    """Store a decimal result, rounded to what decimal128 holds."""
    return Decimal128(DECIMAL128.create_decimal(number) if number.is_finite() else number)


def fits_int32(number: int) -> bool:
    """Say whether an integer fits 32 bits."""
    return INT32_MIN <= number <= INT32_MAX


def fits_int64(number: int) -> bool:
    """Say whether an integer fits 64 bits."""
    return INT64_MIN <= number <= INT64_MAX


def int_or_long(number: int) -> int:
    """Make the narrowest integer type that holds a number."""
    return int(number) if fits_int32(number) else Int64(number)


def as_double(value: Value) -> float:
    """Convert a number to a double."""
    if type(value) is Decimal128:
        return float(to_decimal(value))
    return float(value)


def double_to_decimal(number: float) -> Decimal:
    """Convert a double to a decimal of exactly 15 digits."""
    if number == 0 or not math.isfinite(number):
        return exact_decimal(number)
    exact = exact_decimal(number)
    base2 = math.frexp(number)[1] - 1
    base10 = int(base2 * 30103 / 100000)
    if base2 < 0:
        base10 -= 1
    rounded = exact.quantize(Decimal(1).scaleb(base10 - 14, _EXACT), context=_EXACT)
    if len(rounded.as_tuple().digits) > 15:
        rounded = exact.quantize(Decimal(1).scaleb(base10 - 13, _EXACT), context=_EXACT)
    return rounded


def exact_decimal(number: float) -> Decimal:
    """Convert a double to the nearest decimal of 34 digits."""
    if number == 0:
        return Decimal("-0") if math.copysign(1, number) < 0 else Decimal(0)
    if math.isnan(number):
        return Decimal("-NaN") if math.copysign(1, number) < 0 else Decimal("NaN")
    return DECIMAL128.create_decimal_from_float(number)


def as_decimal(value: Value) -> Decimal:
    """Convert a number to a decimal as arithmetic with decimals does."""
    if type(value) is Decimal128:
        return to_decimal(value)
    return double_to_decimal(value) if type(value) is float else Decimal(int(value))


def as_long(value: Value) -> int:
    """Convert a number to a 64-bit integer, towards zero; fails when it does not fit."""
    kind = type(value)
    if kind is int or kind is Int64:
        return int(value)
    if kind is float:
        if not -(2.0**63) <= value < 2.0**63:
            fail(31109, f"Can't coerce out of range value {format_double(value)} to long")
        return int(value)
    if kind is Decimal128:
        return decimal_to_long(to_decimal(value))
    raise Failure(16004, f"can't convert from BSON type {type_name(value)} to long")


def decimal_to_long(number: Decimal) -> int:
    """Round a decimal half to even to 64 bits; what does not fit is the smallest integer."""
    if not number.is_finite():
        return INT64_MIN
    rounded = int(number.to_integral_value(rounding=decimal.ROUND_HALF_EVEN))
    return rounded if fits_int64(rounded) else INT64_MIN


def as_int(value: Value) -> int:
    """Convert a number to a 32-bit integer, towards zero; fails when it does not fit."""
    number = as_double(value) if type(value) is Decimal128 else value
    if not INT32_MIN <= number <= INT32_MAX:
        fail(31108, f"Can't coerce out of range value {format_double(as_double(value))} to int")
    return int(number)


def _integral(value: Value) -> int | None:
    """Give the integer a number is exactly, None when it is none."""
    kind = type(value)
    if kind is int or kind is Int64:
        return int(value)
    if kind is float:
        return int(value) if value.is_integer() else None
    if kind is Decimal128:
        number = to_decimal(value)
        if number.is_finite() and number == number.to_integral_value():
            return int(number)
    return None


def is_int32(value: Value) -> bool:
    """Say whether a value is a number that is exactly a 32-bit integer."""
    number = _integral(value)
    return number is not None and fits_int32(number)


def is_int64(value: Value) -> bool:
    """Say whether a value is a number that is exactly a 64-bit integer."""
    number = _integral(value)
    return number is not None and fits_int64(number)


def format_double(number: float) -> str:
    """Write a double as the server's string builder does."""
    return f"{number:g}"


def format_decimal(value: Decimal128) -> str:
    """Write a decimal as the server does."""
    number = to_decimal(value)
    if number.is_nan():
        return "NaN"
    if number.is_infinite():
        return "-Infinity" if number < 0 else "Infinity"
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    coefficient = "".join(map(str, digits))
    prefix = "-" if sign else ""
    adjusted = exponent + len(coefficient) - 1
    if exponent > 0 or adjusted < -6:
        point = "." if len(coefficient) > 1 else ""
        plus = "+" if adjusted > 0 else ""
        return f"{prefix}{coefficient[0]}{point}{coefficient[1:]}E{plus}{adjusted}"
    if exponent == 0:
        return prefix + coefficient
    whole = coefficient.rjust(1 - exponent, "0")
    return f"{prefix}{whole[:exponent]}.{whole[exponent:]}"


class Sum:
    """A compensated sum of numbers of mixed types, that knows the widest type it has seen."""

    __slots__ = ("_addend", "_decimals", "_special", "_sum", "kind")

    def __init__(self) -> None:
        self._sum = 0.0
        self._addend = 0.0
        self._special = 0.0
        self._decimals = Decimal(0)
        self.kind: type = int

    def add(self, value: Value) -> None:
        """Add a number of any type."""
        kind = type(value)
        if kind is Decimal128:
            self._decimals = DECIMAL128.add(self._decimals, to_decimal(value))
            self.kind = Decimal128
        elif kind is float:
            self._add_double(value)
            if self.kind is not Decimal128:
                self.kind = float
        elif kind is Int64:
            self.add_long(value)
            if self.kind is int:
                self.kind = Int64
        else:
            self._add_double(float(value))

    def add_long(self, number: int) -> None:
        """Add an integer without losing digits, and without widening the type."""
        high = quotient(number, 2**32) * 2**32
        self._add_double(float(number - high))
        self._add_double(float(high))

    def _add_double(self, number: float) -> None:
        self._special += number
        total = number + self._addend
        self._addend = self._addend - (total - number)
        number = total
        total = self._sum + number
        rest = total - number
        low = (self._sum - rest) + (number - (total - rest))
        self._sum = total
        self._addend += low

    def double(self) -> float:
        """Give the sum of what was no decimal as a double."""
        return self._special if math.isnan(self._sum) else self._sum

    def decimal(self) -> Decimal:
        """Give the whole sum as a decimal."""
        return DECIMAL128.add(self._decimals, self._rest_as_decimal())

    def _rest_as_decimal(self) -> Decimal:
        if not math.isfinite(self._sum):
            return exact_decimal(self._special)
        return DECIMAL128.add(exact_decimal(self._sum), exact_decimal(self._addend))

    def fits_long(self) -> bool:
        """Say whether the sum of what was no decimal fits 64 bits."""
        top = 2.0**63
        if -top < self._sum < top:
            return True
        if self._sum == top:
            return self._addend < -0.5
        return self._sum == -top and self._addend >= -0.5

    def long(self) -> int:
        """Give the sum of what was no decimal rounded to an integer, half away from zero."""
        if self._sum == 2.0**63:
            return _round_half_away(self._addend) + 2**63
        total = _round_half_away(self._sum)
        return total + _round_half_away((self._sum - float(total)) + self._addend)

    def value(self) -> Value:
        """Give the sum in the narrowest type that holds it."""
        if self.kind is Decimal128:
            return to_decimal128(self.decimal())
        if self.kind is not float and self.fits_long():
            return Int64(self.long()) if self.kind is Int64 else int_or_long(self.long())
        return self.double()


def quotient(number: int, divisor: int) -> int:
    """Divide by a positive integer, towards zero."""
    return -(-number // divisor) if number < 0 else number // divisor


def _round_half_away(number: float) -> int:
    whole = math.floor(abs(number) + 0.5)
    # Adding a half may itself round up: 0.49999999999999994 must stay 0.
    if whole - abs(number) > 0.5:
        whole -= 1
    return -whole if number < 0 else whole


def widest(left: Value, right: Value) -> type | None:
    """Give the wider type of two numbers, None when one is no number."""
    kinds = {type(left), type(right)}
    if not kinds <= {int, Int64, float, Decimal128}:
        return None
    for kind in (Decimal128, float, Int64):
        if kind in kinds:
            return kind
    return int
