"""`$ceil`, `$floor`, `$round` and `$trunc`."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal

from bson.decimal128 import Decimal128
from bson.int64 import Int64

from tailrace.engine.expression.arithmetic import numeric
from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.numbers import (
    DECIMAL128,
    INT32_MAX,
    INT32_MIN,
    as_long,
    exact_decimal,
    fits_int64,
    is_int32,
    to_decimal128,
)
from tailrace.engine.expression.parsing import Arity, Delayed, function
from tailrace.engine.expression.values import Value, is_nullish, is_number, type_name


def _rounding(name: str, of_double: Callable[[float], int], mode: str) -> None:
    @numeric(name)
    def compute(value: Value) -> Value:
        if type(value) is Decimal128:
            whole = value.to_decimal().quantize(Decimal(1), rounding=mode, context=DECIMAL128)
            return to_decimal128(whole)
        if type(value) is float and math.isfinite(value):
            return math.copysign(float(of_double(value)), value)
        return value


_rounding("$ceil", math.ceil, decimal.ROUND_CEILING)
_rounding("$floor", math.floor, decimal.ROUND_FLOOR)


def quantized(number: Decimal, exponent: int, mode: str) -> Decimal:
    """Round to a power of ten; a number with no digits below it stays as it is."""
    normal = _normalized(number)
    if normal.is_finite() and _exponent(normal) > exponent:
        return normal
    return number.quantize(Decimal((0, (1,), exponent)), rounding=mode, context=DECIMAL128)


def _normalized(number: Decimal) -> Decimal:
    """Move the exponent as far down as 34 digits allow, as adding the smallest zero does."""
    return DECIMAL128.add(number, Decimal((0, (0,), -6176)))


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent


def _round_or_trunc(name: str, mode: str) -> None:
    def compute(value: Value, *precision: Delayed) -> Value:
        if is_nullish(value):
            return None
        if not is_number(value):
            fail(51081, f"{name} only supports numeric types, not {type_name(value)}")
        if not precision:
            return _rounded(name, value, 0, mode)
        given = precision[0]()
        if is_nullish(given):
            return None
        places = as_long(given)
        check(is_int32(given), 51082, f"precision argument to  {name} must be a integral value")
        check(
            -20 <= places <= 100,
            51083,
            f"cannot apply {name} with precision value {places} value must be in [-20, 100]",
        )
        return _rounded(name, value, places, mode)

    function(name, arity=Arity(1, 2), delayed=1)(compute)


def _rounded(name: str, value: Value, places: int, mode: str) -> Value:
    if type(value) is Decimal128:
        number = value.to_decimal()
        return value if number.is_infinite() else to_decimal128(quantized(number, -places, mode))
    if type(value) is float:
        if math.isinf(value):
            return value
        return float(quantized(exact_decimal(value), -places, mode))
    if places >= 0:
        return value
    result = int(quantized(Decimal(int(value)), -places, mode))
    check(
        fits_int64(result),
        51080,
        f"invalid conversion from Decimal128 result in {name} resulting from arguments: [{value}, {places}]",
    )
    if type(value) is Int64 or result > INT32_MAX:
        return Int64(result)
    # The server casts what is too small, and so turns it around.
    return (result - INT32_MIN) % 2**32 + INT32_MIN


_round_or_trunc("$round", decimal.ROUND_HALF_EVEN)
_round_or_trunc("$trunc", decimal.ROUND_DOWN)
