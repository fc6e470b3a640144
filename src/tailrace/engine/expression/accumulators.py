"""Accumulators used as operators: over several operands, or over the elements of one array."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from bson.decimal128 import Decimal128

from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.nodes import Associative, Evaluate, KeepsParts, Node, Operator, Slots
from tailrace.engine.expression.numbers import DECIMAL128, Sum, as_decimal, as_double, as_long, to_decimal128
from tailrace.engine.expression.ordering import compare, sort_key
from tailrace.engine.expression.parsing import Arguments, Scope, parse_operands, parser
from tailrace.engine.expression.rendering import render
from tailrace.engine.expression.values import Document, Value, is_nullish, is_number, type_name


def _sum(values: Iterable[Value]) -> Value:
    total = Sum()
    for value in values:
        if is_number(value):
            total.add(value)
    return total.value()


def _average(values: Iterable[Value]) -> Value:
    total = Sum()
    count = 0
    for value in values:
        if is_number(value):
            total.add(value)
            count += 1
    if count == 0:
        return None
    if total.kind is Decimal128:
        return to_decimal128(DECIMAL128.divide(total.decimal(), as_decimal(count)))
    return total.double() / count


def _extreme(sense: int, values: Iterable[Value]) -> Value:
    best: Value = None
    for value in values:
        if not is_nullish(value) and (best is None or compare(best, value) * sense > 0):
            best = value
    return best


def _deviation(less: int, values: Iterable[Value]) -> Value:
    """Give the standard deviation by Welford's method; `less` is 1 for a sample."""
    count, mean, squares = 0, 0.0, 0.0
    for value in values:
        if is_number(value):
            number = as_double(value)
            count += 1
            delta = number - mean
            if delta != 0.0:
                mean += delta / count
                squares += delta * (number - mean)
    if count - less <= 0:
        return None
    variance = squares / (count - less)
    return -math.nan if variance < 0 else math.sqrt(variance)


def _merge(values: Iterable[Value]) -> Value:
    fields: dict[bytes, Value] = {}
    for value in values:
        if is_nullish(value):
            continue
        if type(value) is not Document:
            fail(
                40400, f"$mergeObjects requires object inputs, but input {render(value)} is of type " + type_name(value)
            )
        fields.update(value.items())
    return Document.of(fields)


Accumulate = Callable[[Iterable[Value]], Value]
_ACCUMULATORS: Final[dict[str, tuple[Accumulate, bool]]] = {
    # name: (what it computes, whether constants among several operands are computed early)
    "$sum": (_sum, True),
    "$avg": (_average, False),
    "$min": (partial(_extreme, 1), True),
    "$max": (partial(_extreme, -1), True),
    "$stdDevPop": (partial(_deviation, 0), False),
    "$stdDevSamp": (partial(_deviation, 1), False),
    "$mergeObjects": (_merge, False),
}


@parser(*_ACCUMULATORS)
def parse_accumulator(name: str, value: Value, scope: Scope) -> Node:
    """Read the values to accumulate."""
    accumulate, groups = _ACCUMULATORS[name]
    operands = parse_operands(value, scope)

    def build(*evaluates: Evaluate) -> Evaluate:
        if len(evaluates) != 1:
            return lambda slots: accumulate(evaluate(slots) for evaluate in evaluates)
        (only,) = evaluates

        def single(slots: Slots) -> Value:
            given = only(slots)
            return accumulate(given if type(given) is list else [given])

        return single

    if groups and len(operands) != 1:
        return Associative(name, operands, build, commutative=True)
    return Operator(name, operands, build)


_SEVERAL: Final = Arguments(
    names=("n", "input"),
    in_order=True,
    not_object=(5787900, "specification must be an object; found {}"),
    unknown=(5787901, "Unknown argument for 'n' operator: {}"),
    required={"n": (5787906, "Missing value for 'n'"), "input": (5787907, "Missing value for 'input'")},
)
_SEVERAL_ENDS: Final = Arguments(
    names=_SEVERAL.names,
    in_order=True,
    not_object=(5787801, "specification must be an object; found {}"),
    unknown=_SEVERAL.unknown,
    required=_SEVERAL.required,
)


def _count(value: Value) -> int:
    message = f"Value for 'n' must be of integral type, but found {render(value)}"
    check(is_number(value), 5787902, message)
    count = as_long(value)
    check(float(count) == as_double(value), 5787903, message)
    check(count > 0, 5787908, f"'n' must be greater than 0, found {count}")
    return count


@parser("$firstN", "$lastN", "$minN", "$maxN", since=(5, 2))
def parse_several(name: str, value: Value, scope: Scope) -> Node:
    """Read how many elements to take, and of what array."""
    arguments = _SEVERAL_ENDS if name in ("$firstN", "$lastN") else _SEVERAL

    def build(number: Evaluate, source: Evaluate) -> Evaluate:
        def evaluate(slots: Slots) -> Value:
            count = _count(number(slots))
            array = source(slots)
            check(type(array) is list, 5788200, "Input must be an array")
            return _several(name, array, count)

        return evaluate

    return KeepsParts(name, arguments.parse(value, scope), build)


def _several(name: str, array: list[Value], count: int) -> list[Value]:
    if name == "$firstN":
        return array[:count]
    if name == "$lastN":
        return array[-count:]
    values = sorted((value for value in array if not is_nullish(value)), key=sort_key)
    return values[:count] if name == "$minN" else values[: -count - 1 : -1]
