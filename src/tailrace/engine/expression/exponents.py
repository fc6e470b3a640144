"""Roots, powers and logarithms.

For doubles the C library computes them, as on the server. For decimals the server has a library of its own, whose
last digits nobody else gives: of 400 random decimals, the correctly rounded result is another than that of a 6.0.27
for 7 % (`$exp`), 13 % (`$ln`), 23 % (`$log10`) and 36 % (`$pow`, whole exponents too). So there a decimal is refused,
never answered almost right. Roots are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from bson.decimal128 import Decimal128
from bson.int64 import Int64

from tailrace.engine.expression.arithmetic import numeric
from tailrace.engine.expression.failures import NOT_IMPLEMENTED, check, fail, leave_to_server
from tailrace.engine.expression.numbers import (
    DECIMAL128,
    as_double,
    fits_int64,
    format_double,
    int_or_long,
    to_decimal128,
)
from tailrace.engine.expression.parsing import function
from tailrace.engine.expression.values import Value, is_nullish, is_number, type_name


@numeric("$sqrt")
def square_root(value: Value) -> Value:
    """Give the square root."""
    message = "$sqrt's argument must be greater than or equal to 0"
    if type(value) is Decimal128:
        number = value.to_decimal()
        check(number.is_nan() or number >= 0, 28714, message)
        return to_decimal128(DECIMAL128.sqrt(number))
    check(not as_double(value) < 0, 28714, message)
    return math.sqrt(as_double(value))


def refuse_decimals(name: str, *values: Value) -> None:
    """Refuse to compute with decimals what the server's decimal library computes in its own way."""
    if any(type(value) is Decimal128 for value in values):
        leave_to_server(NOT_IMPLEMENTED, f"{name} of a decimal is not supported; convert it with $toDouble")


@numeric("$exp")
def exponential(value: Value) -> Value:
    """Raise e to a number."""
    refuse_decimals("$exp", value)
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _logarithm(name: str, code: int, compute: Callable[[float], float]) -> None:
    """Register a logarithm of positive numbers."""

    @numeric(name)
    def evaluate(value: Value) -> Value:
        refuse_decimals(name, value)
        number = as_double(value)
        message = f"{name}'s argument must be a positive number, but is {format_double(number)}"
        check(number > 0 or math.isnan(number), code, message)
        return compute(number)


_logarithm("$ln", 28766, math.log)
_logarithm("$log10", 28761, math.log10)


@function("$log", arity=2)
def logarithm(value: Value, base: Value) -> Value:
    """Give the logarithm to any base."""
    if is_nullish(value) or is_nullish(base):
        return None
    if not is_number(value):
        fail(28756, f"$log's argument must be numeric, not {type_name(value)}")
    if not is_number(base):
        fail(28757, f"$log's base must be numeric, not {type_name(base)}")
    refuse_decimals("$log", value, base)
    number, root = as_double(value), as_double(base)
    message = f"$log's argument must be a positive number, but is {format_double(number)}"
    check(number > 0 or math.isnan(number), 28758, message)
    message = f"$log's base must be a positive number not equal to 1, but is {format_double(root)}"
    check((root > 0 and root != 1) or math.isnan(root), 28759, message)
    return math.log(number) / math.log(root)


@function("$pow", arity=2)
def power(base: Value, exponent: Value) -> Value:
    """Raise a number to a power; integers stay integers while the result fits."""
    if is_nullish(base) or is_nullish(exponent):
        return None
    if not is_number(base):
        fail(28762, f"$pow's base must be numeric, not {type_name(base)}")
    if not is_number(exponent):
        fail(28763, f"$pow's exponent must be numeric, not {type_name(exponent)}")
    refuse_decimals("$pow", base, exponent)
    check(not (base == 0 and exponent < 0), 28764, "$pow cannot take a base of 0 and a negative exponent")
    if float in (type(base), type(exponent)):
        return double_power(as_double(base), as_double(exponent))
    if base in (0, 1, -1):
        result = _power_of_unit(int(base), int(exponent))
    elif 0 <= exponent <= 63 and fits_int64(int(base) ** int(exponent)):
        result = int(base) ** int(exponent)
    else:
        return double_power(float(base), float(exponent))
    return Int64(result) if Int64 in (type(base), type(exponent)) else int_or_long(result)


def _power_of_unit(base: int, exponent: int) -> int:
    if exponent == 0:
        return 1
    return base if exponent % 2 else base * base


def double_power(base: float, exponent: float) -> float:
    """Raise a double to a power as C does, where Python raises."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        odd = exponent.is_integer() and exponent % 2 == 1
        return -math.inf if base < 0 and odd else math.inf
    except ValueError:
        # An invalid operation gives the processor's NaN, with the sign set.
        return -math.nan
