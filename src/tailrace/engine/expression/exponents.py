"""Roots, powers and logarithms.

Decimal results are rounded correctly here; the server's decimal library may be off by one in the last of the
34 digits.
"""

from __future__ import annotations

import math

from bson.decimal128 import Decimal128
from bson.int64 import Int64

from tailrace.engine.expression.arithmetic import numeric
from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.numbers import (
    DECIMAL128,
    as_decimal,
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


@numeric("$exp")
def exponential(value: Value) -> Value:
    """Raise e to a number."""
    if type(value) is Decimal128:
        return to_decimal128(DECIMAL128.exp(value.to_decimal()))
    try:
        return math.exp(as_double(value))
    except OverflowError:
        return math.inf


def _positive(value: Value) -> bool:
    number = value.to_decimal()
    return not number.is_nan() and bool(number > 0)


@numeric("$ln")
def natural_logarithm(value: Value) -> Value:
    """Give the natural logarithm."""
    if type(value) is Decimal128 and _positive(value):
        return to_decimal128(DECIMAL128.ln(value.to_decimal()))
    number = as_double(value)
    check(
        number > 0 or math.isnan(number),
        28766,
        f"$ln's argument must be a positive number, but is {format_double(number)}",
    )
    return math.log(number)


@numeric("$log10")
def logarithm_10(value: Value) -> Value:
    """Give the logarithm to base 10."""
    if type(value) is Decimal128 and _positive(value):
        return to_decimal128(DECIMAL128.log10(value.to_decimal()))
    number = as_double(value)
    check(
        number > 0 or math.isnan(number),
        28761,
        f"$log10's argument must be a positive number, but is {format_double(number)}",
    )
    return math.log10(number)


@function("$log", arity=2)
def logarithm(value: Value, base: Value) -> Value:
    """Give the logarithm to any base."""
    if is_nullish(value) or is_nullish(base):
        return None
    if not is_number(value):
        fail(28756, f"$log's argument must be numeric, not {type_name(value)}")
    if not is_number(base):
        fail(28757, f"$log's base must be numeric, not {type_name(base)}")
    if Decimal128 in (type(value), type(base)):
        number, root = as_decimal(value), as_decimal(base)
        if not (number.is_nan() or root.is_nan()) and number > 0 and root > 0 and root != 1:
            return to_decimal128(DECIMAL128.divide(DECIMAL128.ln(number), DECIMAL128.ln(root)))
    double, double_base = as_double(value), as_double(base)
    check(
        double > 0 or math.isnan(double),
        28758,
        f"$log's argument must be a positive number, but is {format_double(double)}",
    )
    check(
        (double_base > 0 and double_base != 1) or math.isnan(double_base),
        28759,
        "$log's base must be a positive number not equal to 1, but is " + format_double(double_base),
    )
    return math.log(double) / math.log(double_base)


@function("$pow", arity=2)
def power(base: Value, exponent: Value) -> Value:
    """Raise a number to a power; integers stay integers while the result fits."""
    if is_nullish(base) or is_nullish(exponent):
        return None
    if not is_number(base):
        fail(28762, f"$pow's base must be numeric, not {type_name(base)}")
    if not is_number(exponent):
        fail(28763, f"$pow's exponent must be numeric, not {type_name(exponent)}")
    message = "$pow cannot take a base of 0 and a negative exponent"
    if Decimal128 in (type(base), type(exponent)):
        number, times = as_decimal(base), as_decimal(exponent)
        check(not (number == 0 and times.is_signed()), 28764, message)
        return to_decimal128(DECIMAL128.power(number, times))
    check(not (base == 0 and exponent < 0), 28764, message)
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
