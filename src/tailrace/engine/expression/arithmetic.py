"""Arithmetic operators: sums, products, remainders and rounding."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial

from bson.decimal128 import Decimal128
from bson.int64 import Int64

from tailrace.engine.expression.failures import Failure, check, fail
from tailrace.engine.expression.nodes import Associative, Evaluate, LeftAssociative, Node, Operator, Slots
from tailrace.engine.expression.numbers import (
    DECIMAL128,
    INT64_MIN,
    Sum,
    as_decimal,
    as_double,
    as_int,
    as_long,
    decimal_to_long,
    fits_int64,
    int_or_long,
    is_int32,
    to_decimal128,
    widest,
)
from tailrace.engine.expression.parsing import Arity, Scope, call_with, function, parse_operands, parser
from tailrace.engine.expression.running_sum import RunningSum, minus_millis
from tailrace.engine.expression.values import Date, Value, expect_number, is_nullish, is_number, type_name
from tailrace.raw.decimals import to_decimal
from tailrace.server_codes import BAD_VALUE, DURATION_OVERFLOW, OVERFLOW, TYPE_MISMATCH


@parser("$add")
def parse_add(name: str, value: Value, scope: Scope) -> Node:
    """Read what is added: numbers, and at most one date."""
    operands = parse_operands(value, scope)
    if scope.context.version >= (7, 0):
        return LeftAssociative(name, operands, add_in_order)
    return Associative(name, operands, add, commutative=True)


def add_in_order(*operands: Evaluate) -> Evaluate:
    """Add number by number, as 7.0 does."""

    def evaluate(slots: Slots) -> Value:
        total = RunningSum()
        for operand in operands:
            value = operand(slots)
            if is_nullish(value):
                return None
            total.add(value)
        return total.value()

    return evaluate


def add(*operands: Evaluate) -> Evaluate:
    """Add with a compensated sum, as servers before 7.0 do."""

    def evaluate(slots: Slots) -> Value:
        total = Sum()
        dated = False
        for operand in operands:
            value = operand(slots)
            if is_number(value):
                total.add(value)
            elif type(value) is Date:
                check(not dated, 16612, "only one date allowed in an $add expression")
                dated = True
                total.add_long(value.millis)
            elif is_nullish(value):
                return None
            else:
                fail(16554, f"$add only supports numeric or date types, not {type_name(value)}")
        return _date_total(total) if dated else total.value()

    return evaluate


def _date_total(total: Sum) -> Date:
    if total.kind is Decimal128:
        return Date(decimal_to_long(total.decimal()))
    check(total.fits_long(), OVERFLOW, "date overflow in $add")
    return Date(total.long())


Binary = Callable[[Value, Value], Value]


def _two_operands(name: str, compute: Binary, compute_before_5: Binary, compute_since_7: Binary | None = None) -> None:
    """Register a function of two values with the ways it was before 5.0 and is since 7.0.

    From 5.0 on servers compute the second operand first, which shows when both fail.
    """

    def build(chosen: Binary, left: Evaluate, right: Evaluate) -> Evaluate:
        def evaluate(slots: Slots) -> Value:
            second = right(slots)
            return chosen(left(slots), second)

        return evaluate

    def parse(name: str, value: Value, scope: Scope) -> Node:
        operands = Arity(2, 2).parse(name, value, scope)
        if scope.context.version >= (5, 0):
            newer = compute_since_7 if scope.context.version >= (7, 0) else None
            return Operator(name, operands, partial(build, newer or compute))
        return Operator(name, operands, lambda *given: call_with(compute_before_5, given))

    parser(name)(parse)


def subtract(left: Value, right: Value) -> Value:
    """Subtract numbers, dates, or a number of milliseconds from a date."""
    kind = widest(left, right)
    if kind is Decimal128:
        return to_decimal128(DECIMAL128.subtract(as_decimal(left), as_decimal(right)))
    if kind is float:
        return as_double(left) - as_double(right)
    if kind is not None:
        result = int(left) - int(right)
        if kind is int:
            return int_or_long(result)
        return Int64(result) if fits_int64(result) else float(left) - float(right)
    if is_nullish(left) or is_nullish(right):
        return None
    if type(left) is not Date:
        fail(TYPE_MISMATCH, f"can't $subtract {type_name(right)} from {type_name(left)}")
    if type(right) is Date:
        return Int64(_duration(left.millis - right.millis))
    if is_number(right):
        millis = as_long(right)
        # The server adds the opposite, which the smallest integer does not have.
        return Date(_duration(left.millis + _duration(-millis)))
    raise Failure(TYPE_MISMATCH, f"can't $subtract {type_name(right)} from Date")


def _subtract_before_5(left: Value, right: Value) -> Value:
    if widest(left, right) is Int64:
        # Older servers wrapped around.
        return Int64((int(left) - int(right) - INT64_MIN) % 2**64 + INT64_MIN)
    try:
        return subtract(left, right)
    except Failure as failure:
        code = 16613 if type(left) is Date else 16556
        fail(code if failure.code == TYPE_MISMATCH else failure.code, failure.message)


def _subtract_since_7(left: Value, right: Value) -> Value:
    if type(left) is Date and is_number(right):
        return minus_millis(left, right)
    return subtract(left, right)


_two_operands("$subtract", subtract, _subtract_before_5, _subtract_since_7)


def _duration(number: int) -> int:
    check(fits_int64(number), DURATION_OVERFLOW, "Overflow casting from a lower-precision duration")
    return number


@parser("$multiply")
def parse_multiply(name: str, value: Value, scope: Scope) -> Node:
    """Read the factors."""
    code = TYPE_MISMATCH if scope.context.version >= (5, 0) else 16555
    # Before 4.4 every factor had to fit 64 bits, doubles too.
    must_fit = scope.context.version < (4, 4)

    def build(*operands: Evaluate) -> Evaluate:
        return lambda slots: _product(operands, slots, code, must_fit)

    return Associative(name, parse_operands(value, scope), build, commutative=True)


def _product(operands: tuple[Evaluate, ...], slots: Slots, code: int, must_fit: bool) -> Value:
    product = Product()
    for operand in operands:
        value = operand(slots)
        if is_nullish(value):
            return None
        expect_number(value, code, "$multiply only supports numeric types, not ")
        product.times(value)
        if must_fit and type(value) is float and math.isfinite(value) and not product.is_decimal:
            as_long(value)
    return product.value()


class Product:
    """A product of numbers of mixed types, as a double and an integer side by side."""

    __slots__ = ("_decimal", "_double", "_kind", "_long")

    def __init__(self) -> None:
        self._double = 1.0
        self._long = 1
        self._decimal = Decimal(1)
        self._kind: type = int

    @property
    def is_decimal(self) -> bool:
        """Say whether a decimal was among the factors."""
        return self._kind is Decimal128

    def times(self, factor: Value) -> None:
        """Multiply by one more number."""
        before = self._kind
        one: Value = {int: 1, Int64: Int64(1), float: 1.0, Decimal128: Decimal128("1")}[before]
        kind = widest(one, factor)
        assert kind is not None
        self._kind = kind
        if kind is Decimal128:
            if before is not Decimal128:
                self._decimal = as_decimal(self._double if before is float else self._long)
            self._decimal = DECIMAL128.multiply(self._decimal, as_decimal(factor))
            return
        self._double *= as_double(factor)
        if kind is not float:
            self._long *= int(factor)
            if not fits_int64(self._long):
                self._kind = float

    def value(self) -> Value:
        """Give the product in the type it has grown to."""
        if self._kind is Decimal128:
            return to_decimal128(self._decimal)
        if self._kind is float:
            return self._double
        return Int64(self._long) if self._kind is Int64 else int_or_long(self._long)


def divide(left: Value, right: Value) -> Value:
    """Divide; the result is a double or a decimal."""
    kind = widest(left, right)
    if kind is None:
        if is_nullish(left) or is_nullish(right):
            return None
        names = f"{type_name(left)} and {type_name(right)}"
        fail(TYPE_MISMATCH, f"$divide only supports numeric types, not {names}")
    if kind is Decimal128:
        divisor = as_decimal(right)
        check(divisor.is_nan() or divisor != 0, BAD_VALUE, "can't $divide by zero")
        return to_decimal128(DECIMAL128.divide(as_decimal(left), divisor))
    check(right != 0, BAD_VALUE, "can't $divide by zero")
    return as_double(left) / as_double(right)


def _divide_before_5(left: Value, right: Value) -> Value:
    try:
        return divide(left, right)
    except Failure as failure:
        fail({BAD_VALUE: 16608, TYPE_MISMATCH: 16609}[failure.code], failure.message)


_two_operands("$divide", divide, _divide_before_5)


@parser("$mod")
def parse_mod(name: str, value: Value, scope: Scope) -> Node:
    """Read the dividend and the divisor."""
    operands = Arity(2, 2).parse(name, value, scope)
    by_zero = 5733415 if scope.context.version >= (5, 1) else 16610
    return Operator(name, operands, lambda *given: call_with(partial(mod, by_zero), given))


def mod(decimal_by_zero: int, left: Value, right: Value) -> Value:
    """Give the remainder, with the sign of the dividend."""
    kind = widest(left, right)
    if kind is None:
        if is_nullish(left) or is_nullish(right):
            return None
        names = f"{type_name(left)} and {type_name(right)}"
        fail(16611, f"$mod only supports numeric types, not {names}")
    if kind is Decimal128:
        divisor = as_decimal(right)
        check(divisor.is_nan() or divisor != 0, decimal_by_zero, "can't $mod by zero")
        return to_decimal128(_decimal_remainder(as_decimal(left), divisor))
    check(right != 0, 16610, "can't $mod by zero")
    if type(left) is float or (type(right) is float and not is_int32(right)):
        return _double_remainder(as_double(left), as_double(right))
    if type(left) is Int64 or type(right) is Int64:
        return Int64(truncated_remainder(int(left), as_long(right)))
    return truncated_remainder(int(left), as_int(right))


def _decimal_remainder(left: Decimal, right: Decimal) -> Decimal:
    if left.is_finite() and right.is_finite():
        # The quotient may have more digits than a context allows; the remainder never has.
        return decimal.Context(prec=13000, Emin=-9999, Emax=9999, traps=[]).remainder(left, right)
    return DECIMAL128.remainder(left, right)


def _double_remainder(left: float, right: float) -> float:
    if math.isnan(left) or math.isnan(right):
        return left + right
    # What the processor gives for an invalid operation is a NaN with the sign set.
    return -math.nan if math.isinf(left) else math.fmod(left, right)


def truncated_remainder(left: int, right: int) -> int:
    """Give the remainder of integers as C has it: with the sign of the dividend."""
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def numeric(name: str) -> Callable[[Callable[[Value], Value]], None]:
    """Register a function of one number; nothing gives null, other types are refused."""

    def register(compute: Callable[[Value], Value]) -> None:
        @function(name, null_for_null=True)
        def checked(value: Value) -> Value:
            expect_number(value, 28765, f"{name} only supports numeric types, not ")
            return compute(value)

    return register


@numeric("$abs")
def absolute(value: Value) -> Value:
    """Give the absolute value."""
    if type(value) is Decimal128:
        return to_decimal128(to_decimal(value).copy_abs())
    if type(value) is float:
        return abs(value)
    check(value != INT64_MIN, 28680, "can't take $abs of long long min")
    return Int64(abs(value)) if type(value) is Int64 else int_or_long(abs(value))
