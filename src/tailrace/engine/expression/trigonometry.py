"""Trigonometric operators; decimals are refused, as for powers and logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

from bson.decimal128 import Decimal128

from tailrace.engine.expression.arithmetic import numeric
from tailrace.engine.expression.exponents import refuse_decimals
from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.numbers import (
    DECIMAL128,
    as_double,
    format_double,
    to_decimal128,
)
from tailrace.engine.expression.parsing import Delayed, function
from tailrace.engine.expression.values import Value, is_nullish, is_number, type_name

_INFINITY = math.inf


def _function(
    name: str,
    compute: Callable[[float], float],
    lower: float = -_INFINITY,
    upper: float = _INFINITY,
    *,
    bounded: str = "",
) -> None:
    """Register a function; `bounded` holds the brackets of the range it accepts, if it has one."""

    @numeric(name)
    def evaluate(value: Value) -> Value:
        refuse_decimals(name, value)
        number = as_double(value)
        if bounded and math.isnan(number):
            return value
        if bounded:
            inside = lower <= number <= upper if bounded == "[]" else lower < number < upper
            check(
                inside,
                50989,
                f"cannot apply {name} to {format_double(number)}, value must be in "
                f"{bounded[0]}{format_double(lower)},{format_double(upper)}{bounded[1]}",
            )
        return compute(number)


def _saturating(compute: Callable[[float], float], odd: bool) -> Callable[[float], float]:
    """Give infinity where Python raises."""

    def evaluate(number: float) -> float:
        try:
            return compute(number)
        except OverflowError:
            return -_INFINITY if odd and number < 0 else _INFINITY

    return evaluate


def _hyperbolic_arc_tangent(number: float) -> float:
    return math.copysign(_INFINITY, number) if abs(number) == 1 else math.atanh(number)


_function("$acos", math.acos, -1, 1, bounded="[]")
_function("$asin", math.asin, -1, 1, bounded="[]")
_function("$atanh", _hyperbolic_arc_tangent, -1, 1, bounded="[]")
_function("$acosh", math.acosh, 1, _INFINITY, bounded="[]")
_function("$cos", math.cos, bounded="()")
_function("$sin", math.sin, bounded="()")
_function("$tan", math.tan, bounded="()")
_function("$atan", math.atan)
_function("$asinh", math.asinh)
_function("$cosh", _saturating(math.cosh, odd=False))
_function("$sinh", _saturating(math.sinh, odd=True))
_function("$tanh", math.tanh)


def _conversion(name: str, factor: float, exact: Decimal) -> None:
    """Register a conversion of angles, which decimals take without loss."""

    @numeric(name)
    def evaluate(value: Value) -> Value:
        if type(value) is Decimal128:
            return to_decimal128(DECIMAL128.multiply(value.to_decimal(), exact))
        return as_double(value) * factor


_conversion("$degreesToRadians", math.pi / 180.0, Decimal("0.01745329251994329576923690768488613"))
_conversion("$radiansToDegrees", 180.0 / math.pi, Decimal("57.29577951308232087679815481410517"))


@function("$atan2", arity=2, delayed=1)
def arc_tangent_2(y: Value, second: Delayed) -> Value:
    """Give the angle of a point."""
    if is_nullish(y):
        return None
    if not is_number(y):
        fail(51044, f"$atan2 only supports numeric types, not {type_name(y)}")
    x = second()
    if is_nullish(x):
        return None
    if not is_number(x):
        fail(51045, f"$atan2 only supports numeric types, not {type_name(x)}")
    refuse_decimals("$atan2", y, x)
    return math.atan2(y, x)
