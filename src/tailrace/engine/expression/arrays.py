"""Array operators."""

from __future__ import annotations

from typing import Final

from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.meter import ELEMENT, spend
from tailrace.engine.expression.nodes import Constant, Evaluate, Node, Operator, Slots
from tailrace.engine.expression.numbers import as_double, as_int, as_long, format_double, is_int32
from tailrace.engine.expression.ordering import equal
from tailrace.engine.expression.parsing import (
    Arguments,
    Arity,
    Delayed,
    Scope,
    associative,
    call_delayed,
    call_with,
    function,
    parse_operand,
    parser,
)
from tailrace.engine.expression.rendering import render
from tailrace.engine.expression.sort_pattern import introsort, parse_sort_pattern
from tailrace.engine.expression.strings import bound
from tailrace.engine.expression.values import (
    MISSING,
    Document,
    Value,
    expect,
    expect_number,
    is_nullish,
    text_of,
    type_name,
)
from tailrace.server_codes import EXCEEDED_MEMORY_LIMIT


def _element_at(name: str, array: Value, index: Value, *, single: bool) -> Value:
    if type(array) is not list:
        which = "argument" if single else "first argument"
        fail(28689, f"{name}'s {which} must be an array, but is {type_name(array)}")
    expect_number(index, 28690, f"{name}'s second argument must be a numeric value, but is ")
    if not is_int32(index):
        fail(
            28691,
            f"{name}'s second argument must be representable as a 32-bit integer: " + format_double(as_double(index)),
        )
    position = as_long(index)
    return array[position] if -len(array) <= position < len(array) else MISSING


@function("$arrayElemAt", arity=2, null_for_null=True)
def array_element(array: Value, index: Value) -> Value:
    """Give the element at an index, from the end when it is negative."""
    return _element_at("$arrayElemAt", array, index, single=False)


@function("$first", since=(4, 4), null_for_null=True)
def first(array: Value) -> Value:
    """Give the first element."""
    return _element_at("$first", array, 0, single=True)


@function("$last", since=(4, 4), null_for_null=True)
def last(array: Value) -> Value:
    """Give the last element."""
    return _element_at("$last", array, -1, single=True)


@associative("$concatArrays", commutative=False)
def concat_arrays(*operands: Evaluate) -> Evaluate:
    """Join arrays."""

    def evaluate(slots: Slots) -> Value:
        joined: list[Value] = []
        for operand in operands:
            value = operand(slots)
            if is_nullish(value):
                return None
            expect(value, list, 28664, "$concatArrays only supports arrays, not ")
            joined += value
        return joined

    return evaluate


@function("$isArray")
def is_array(value: Value) -> Value:
    """Say whether a value is an array."""
    return type(value) is list


@function("$size")
def size(value: Value) -> Value:
    """Count the elements of an array."""
    expect(value, list, 17124, "The argument to $size must be an array, but was of type: ")
    return len(value)


@function("$reverseArray", null_for_null=True)
def reverse(value: Value) -> Value:
    """Turn an array around."""
    expect(value, list, 34435, "The argument to $reverseArray must be an array, but was of type: ")
    return value[::-1]


@function("$in", arity=2)
def contains(value: Value, array: Value) -> Value:
    """Say whether an array has a value."""
    expect(array, list, 40081, "$in requires an array as a second argument, found: ")
    return any(equal(value, item) for item in array)


class _IndexOfArray(Operator):
    """`$indexOfArray`; a constant first operand is checked early, with a code of its own."""

    __slots__ = ()

    def optimize(self) -> Node:
        """Check the constant array."""
        optimized = super().optimize()
        array = self.children[0]
        if optimized is not self or type(array) is not Constant:
            return optimized
        if is_nullish(array.value):
            return Constant(None)
        if type(array.value) is not list:
            fail(
                50809,
                "First operand of $indexOfArray must be an array. First argument is of type: " + type_name(array.value),
            )
        return self


def _index_of(array: Value, second: Delayed, *limits: Delayed) -> Value:
    if is_nullish(array):
        return None
    expect(array, list, 40090, "$indexOfArray requires an array as a first argument, found: ")
    start = bound("$indexOfArray", limits[0](), "starting index") if limits else 0
    end = len(array)
    if len(limits) > 1:
        end = min(end, bound("$indexOfArray", limits[1](), "ending index"))
    wanted = second()
    for index in range(start, end):
        if equal(array[index], wanted):
            return index
    return -1


@parser("$indexOfArray")
def parse_index_of_array(name: str, value: Value, scope: Scope) -> Node:
    """Read the array, the value to find and the range to look in."""
    operands = Arity(2, 4).parse(name, value, scope)
    return _IndexOfArray(name, operands, lambda *given: call_delayed(_index_of, given, 1))


@function("$slice", arity=Arity(2, 3), delayed=2, null_for_null=True)
def slice_array(array: Value, position: Value, *counts: Delayed) -> Value:
    """Cut out the first or last elements, or some from a position on."""
    expect(array, list, 28724, "First argument to $slice must be an array, but is of type: ")
    number = _slice_number(position, "Second", (28725, 28726), "must be a numeric value,")
    if not counts:
        return array[:number] if number >= 0 else array[max(0, len(array) + number) :]
    start = max(0, len(array) + number) if number < 0 else min(len(array), number)
    count = counts[0]()
    if is_nullish(count):
        return None
    length = _slice_number(count, "Third", (28727, 28728), "must be numeric,")
    check(length > 0, 28729, f"Third argument to $slice must be positive: {length}")
    return array[start : start + length]


def _slice_number(value: Value, which: str, codes: tuple[int, int], needs: str) -> int:
    expect_number(value, codes[0], f"{which} argument to $slice {needs} but is of type: ")
    if not is_int32(value):
        shown = format_double(as_double(value))
        fail(codes[1], f"{which} argument to $slice can't be represented as a 32-bit integer: {shown}")
    return as_int(value)


_RANGE_BYTES: Final = 100 * 1024 * 1024


@function("$range", arity=Arity(2, 3), delayed=2)
def count_up(start: Value, end: Value, *steps: Delayed) -> Value:
    """Count from a number to another."""
    first_number = _range_number(start, "starting", (34443, 34444), "a starting value")
    last_number = _range_number(end, "ending", (34445, 34446), "an ending value")
    step = 1
    if steps:
        step = _range_number(steps[0](), "step", (34447, 34448), "a step value")
        check(step != 0, 34449, "$range requires a non-zero step value")
    numbers = range(first_number, last_number, step)
    needed = 24 + (len(numbers) + 1) * 16
    check(
        needed < _RANGE_BYTES,
        EXCEEDED_MEMORY_LIMIT,
        f"$range would use too much memory ({needed} bytes) and cannot spill to disk. Memory "
        f"limit: {_RANGE_BYTES} bytes",
    )
    spend(len(numbers) * ELEMENT)
    return list(numbers)


def _range_number(value: Value, what: str, codes: tuple[int, int], whole: str) -> int:
    expect_number(value, codes[0], f"$range requires a numeric {what} value, found value of type: ")
    if not is_int32(value):
        fail(
            codes[1],
            f"$range requires {whole} that can be represented as a 32-bit integer, found value: " + render(value),
        )
    return as_int(value)


@parser("$zip")
def parse_zip(name: str, value: Value, scope: Scope) -> Node:
    """Read the arrays to transpose, and what stands in for those that are too short."""
    expect(value, Document, 34460, "$zip only supports an object as an argument, found ")
    inputs: list[Node] = []
    defaults: list[Node] = []
    longest = False
    for key, argument in value.items():
        if key == b"inputs":
            expect(argument, list, 34461, "inputs must be an array of expressions, found ")
            inputs = [parse_operand(item, scope) for item in argument]
        elif key == b"defaults":
            expect(argument, list, 34462, "defaults must be an array of expressions, found ")
            defaults = [parse_operand(item, scope) for item in argument]
        elif key == b"useLongestLength":
            if type(argument) is not bool:
                fail(34463, f"useLongestLength must be a bool, found {type_name(value)}")
            longest = argument
        else:
            fail(34464, f"$zip found an unknown argument: {text_of(key)}")
    check(inputs, 34465, "$zip requires at least one input array")
    allowed = longest or not defaults
    check(allowed, 34466, "cannot specify defaults unless useLongestLength is true")
    same = not defaults or len(defaults) == len(inputs)
    check(same, 34467, "defaults and inputs must have the same length")
    count = len(inputs)

    def build(*operands: Evaluate) -> Evaluate:
        return lambda slots: _zip(slots, operands[:count], operands[count:], longest)

    return Operator(name, [*inputs, *defaults], build, folds=False)


def _zip(slots: Slots, inputs: tuple[Evaluate, ...], defaults: tuple[Evaluate, ...], longest: bool) -> Value:
    arrays = []
    for operand in inputs:
        array = operand(slots)
        if is_nullish(array):
            return None
        if type(array) is not list:
            fail(34468, f"$zip found a non-array expression in input: {render(array)}")
        arrays.append(array)
    lengths = [len(array) for array in arrays]
    fill: list[Value] = [None] * len(arrays)
    if min(lengths) != max(lengths) and defaults:
        fill = [operand(slots) for operand in defaults]
    rows = range(max(lengths) if longest else min(lengths))
    spend(len(rows) * (len(arrays) + 5) * 8)
    return [[array[row] if row < len(array) else fill[i] for i, array in enumerate(arrays)] for row in rows]


_SORT_ARRAY: Final = Arguments(
    names=("input", "sortBy"),
    in_order=True,
    not_object=(2942500, "$sortArray requires an object as an argument, found: {}"),
    unknown=(2942501, "$sortArray found an unknown argument: {}"),
    required={
        "input": (2942502, "$sortArray requires 'input' to be specified"),
        "sortBy": (2942503, "$sortArray requires 'sortBy' to be specified"),
    },
)


@parser("$sortArray", since=(6, 0))
def parse_sort_array(name: str, value: Value, scope: Scope) -> Node:
    """Read the array and the order."""
    operand, less = _SORT_ARRAY.parse(value, scope, sortBy=parse_sort_pattern)

    def compute(array: Value) -> Value:
        if is_nullish(array):
            return None
        expect(array, list, 2942504, "The input argument to $sortArray must be an array, but was of type: ")
        return introsort(array, less)

    return Operator(name, [operand], lambda *given: call_with(compute, given), folds=False)
