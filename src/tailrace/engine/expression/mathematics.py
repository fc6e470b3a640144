"""Roots, powers, logarithms, rounding and trigonometry.

For doubles the C library computes them, as on the server. For decimals the server has a library of its own, whose
last digits nobody else gives: of 400 random decimals, the correctly rounded result is another than that of a 6.0.27
for 7 % (`$exp`), 13 % (`$ln`), 23 % (`$log10`) and 36 % (`$pow`, whole exponents too). So there a decimal is refused,
never answered almost right. Roots are exact.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal

from bson.decimal128 import Decimal128
from bson.int64 import Int64

from tailrace.engine.expression.arithmetic import numeric
from tailrace.engine.expression.failures import check, leave_to_server
from tailrace.engine.expression.numbers import (
    DECIMAL128,
    INT32_MAX,
    INT32_MIN,
    as_double,
    as_long,
    exact_decimal,
    fits_int64,
    format_double,
    int_or_long,
    is_int32,
    to_decimal128,
)
from tailrace.engine.expression.parsing import Arity, Delayed, function
from tailrace.engine.expression.values import Value, expect_number, is_nullish
from tailrace.raw.decimals import to_decimal
from tailrace.server_codes import NOT_IMPLEMENTED


@numeric("$sqrt")
def square_root(value: Value) -> Value:
    """Give the square root."""
    message = "$sqrt's argument must be greater than or equal to 0"
    if type(value) is Decimal128:
        number = to_decimal(value)
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


@function("$log", arity=2, null_for_null=True)
def logarithm(value: Value, base: Value) -> Value:
    """Give the logarithm to any base."""
    expect_number(value, 28756, "$log's argument must be numeric, not ")
    expect_number(base, 28757, "$log's base must be numeric, not ")
    refuse_decimals("$log", value, base)
    number, root = as_double(value), as_double(base)
    message = f"$log's argument must be a positive number, but is {format_double(number)}"
    check(number > 0 or math.isnan(number), 28758, message)
    message = f"$log's base must be a positive number not equal to 1, but is {format_double(root)}"
    check((root > 0 and root != 1) or math.isnan(root), 28759, message)
    return math.log(number) / math.log(root)


@function("$pow", arity=2, null_for_null=True)
def power(base: Value, exponent: Value) -> Value:
    """Raise a number to a power; integers stay integers while the result fits."""
    expect_number(base, 28762, "$pow's base must be numeric, not ")
    expect_number(exponent, 28763, "$pow's exponent must be numeric, not ")
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


def _rounding(name: str, of_double: Callable[[float], int], mode: str) -> None:
    @numeric(name)
    def compute(value: Value) -> Value:
        if type(value) is Decimal128:
            whole = to_decimal(value).quantize(Decimal(1), rounding=mode, context=DECIMAL128)
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
    @function(name, arity=Arity(1, 2), delayed=1, null_for_null=True)
    def compute(value: Value, *precision: Delayed) -> Value:
        expect_number(value, 51081, f"{name} only supports numeric types, not ")
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


def _rounded(name: str, value: Value, places: int, mode: str) -> Value:
    if type(value) is Decimal128:
        number = to_decimal(value)
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
            return to_decimal128(DECIMAL128.multiply(to_decimal(value), exact))
        return as_double(value) * factor


_conversion("$degreesToRadians", math.pi / 180.0, Decimal("0.01745329251994329576923690768488613"))
_conversion("$radiansToDegrees", 180.0 / math.pi, Decimal("57.29577951308232087679815481410517"))


@function("$atan2", arity=2, delayed=1, null_for_null=True)
def arc_tangent_2(y: Value, second: Delayed) -> Value:
    """Give the angle of a point."""
    expect_number(y, 51044, "$atan2 only supports numeric types, not ")
    x = second()
    if is_nullish(x):
        return None
    expect_number(x, 51045, "$atan2 only supports numeric types, not ")
    refuse_decimals("$atan2", y, x)
    return math.atan2(y, x)
