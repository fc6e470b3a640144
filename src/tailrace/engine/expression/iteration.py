"""Operators that define variables: `$let`, `$map`, `$filter` and `$reduce`."""

from __future__ import annotations

from typing import Final

from tailrace.engine.expression.conditions import as_document
from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.meter import step
from tailrace.engine.expression.nodes import Evaluate, Node, Operator, Slots
from tailrace.engine.expression.numbers import as_int, is_int32
from tailrace.engine.expression.parsing import Arguments, Scope, check_variable_for_writing, parse_operand, parser
from tailrace.engine.expression.rendering import render
from tailrace.engine.expression.values import MISSING, Document, Value, expect, is_nullish, text_of, truth

_LET: Final = Arguments(
    names=("vars", "in"),
    not_object=(16874, "$let only supports an object as its argument"),
    unknown=(16875, "Unrecognized parameter to $let: {}"),
    required={"vars": (16876, "Missing 'vars' parameter to $let"), "in": (16877, "Missing 'in' parameter to $let")},
)


@parser("$let")
def parse_let(name: str, value: Value, scope: Scope) -> Node:
    """Read the variables, which see only the outer ones, and the expression that uses them."""
    given = _LET.read(value)
    variables = given["vars"]
    if type(variables) is list:
        variables = as_document(variables)
    expect(variables, Document, 10065, "invalid parameter: expected an object (vars), found ")
    operands = [parse_operand(operand, scope) for _, operand in variables.items()]
    names = [text_of(key) for key in variables.names()]
    for variable in names:
        check_variable_for_writing(variable, scope.context.version)
    inner, slots = scope.define(*names)
    body = parse_operand(given["in"], inner)
    if not names:
        return body

    def build(*evaluates: Evaluate) -> Evaluate:
        *values, result = evaluates
        bindings = tuple(zip(slots, values, strict=True))

        def evaluate(state: Slots) -> Value:
            for slot, operand in bindings:
                state[slot] = operand(state)
            return result(state)

        return evaluate

    return Operator(name, [*operands, body], build, folds=False)


_MAP: Final = Arguments(
    names=("input", "as", "in"),
    not_object=(16878, "$map only supports an object as its argument"),
    unknown=(16879, "Unrecognized parameter to $map: {}"),
    required={"input": (16880, "Missing 'input' parameter to $map"), "in": (16882, "Missing 'in' parameter to $map")},
)


def _element_variable(given: dict[str, Value], scope: Scope) -> str:
    name = given.get("as", "this")
    # The server reads a name that is no string as an empty one.
    variable = name if type(name) is str else ""
    check_variable_for_writing(variable, scope.context.version)
    return variable


@parser("$map")
def parse_map(name: str, value: Value, scope: Scope) -> Node:
    """Read the array and the expression to apply to each element."""
    given = _MAP.read(value)
    source = parse_operand(given["input"], scope)
    inner, (slot,) = scope.define(_element_variable(given, scope))
    body = parse_operand(given["in"], inner)

    def build(array: Evaluate, each: Evaluate) -> Evaluate:
        def evaluate(slots: Slots) -> Value:
            values = array(slots)
            if is_nullish(values):
                return None
            expect(values, list, 16883, "input to $map must be an array not ")
            results = []
            for item in values:
                step()
                slots[slot] = item
                result = each(slots)
                results.append(None if result is MISSING else result)
            return results

        return evaluate

    return Operator(name, [source, body], build, folds=False)


_FILTER: Final = Arguments(
    names=("input", "as", "cond", "limit"),
    not_object=(28646, "$filter only supports an object as its argument"),
    unknown=(28647, "Unrecognized parameter to $filter: {}"),
    required={
        "input": (28648, "Missing 'input' parameter to $filter"),
        "cond": (28650, "Missing 'cond' parameter to $filter"),
    },
)
_FILTER_BEFORE_5_2: Final = Arguments(
    names=("input", "as", "cond"), not_object=_FILTER.not_object, unknown=_FILTER.unknown, required=_FILTER.required
)


@parser("$filter")
def parse_filter(name: str, value: Value, scope: Scope) -> Node:
    """Read the array, the condition and, from 5.2 on, how many elements to keep."""
    arguments = _FILTER if scope.context.version >= (5, 2) else _FILTER_BEFORE_5_2
    given = arguments.read(value)
    source = parse_operand(given["input"], scope)
    inner, (slot,) = scope.define(_element_variable(given, scope))
    condition = parse_operand(given["cond"], inner)
    limit = parse_operand(given["limit"], scope) if "limit" in given else None

    def build(array: Evaluate, keep: Evaluate, most: Evaluate | None) -> Evaluate:
        def evaluate(slots: Slots) -> Value:
            values = array(slots)
            if is_nullish(values):
                return None
            expect(values, list, 28651, "input to $filter must be an array not ")
            if not values:
                return values
            limit = _filter_limit(most(slots)) if most is not None else None
            kept: list[Value] = []
            for item in values:
                step()
                slots[slot] = item
                if truth(keep(slots)):
                    kept.append(item)
                    if len(kept) == limit:
                        break
            return kept

        return evaluate

    return Operator(name, [source, condition, limit], build, folds=False)


def _filter_limit(value: Value) -> int | None:
    if is_nullish(value):
        return None
    if not is_int32(value):
        fail(327391, f"$filter: limit must be represented as a 32-bit integral value: {render(value)}")
    limit = as_int(value)
    check(limit > 0, 327392, f"$filter: limit must be greater than 0: {limit}")
    return limit


_REDUCE: Final = Arguments(
    names=("input", "initialValue", "in"),
    in_order=True,
    not_object=(40075, "$reduce requires an object as an argument, found: {}"),
    unknown=(40076, "$reduce found an unknown argument: {}"),
    required={
        "input": (40077, "$reduce requires 'input' to be specified"),
        "initialValue": (40078, "$reduce requires 'initialValue' to be specified"),
        "in": (40079, "$reduce requires 'in' to be specified"),
    },
)


@parser("$reduce")
def parse_reduce(name: str, value: Value, scope: Scope) -> Node:
    """Read the array, the value to begin with and how to go on."""
    inner, (this, so_far) = scope.define("this", "value")
    children = _REDUCE.parse(value, scope, **{"in": lambda body: parse_operand(body, inner)})

    def build(array: Evaluate, initial: Evaluate, following: Evaluate) -> Evaluate:
        def evaluate(slots: Slots) -> Value:
            values = array(slots)
            if is_nullish(values):
                return None
            if type(values) is not list:
                fail(40080, f"$reduce requires that 'input' be an array, found: {render(values)}")
            result = initial(slots)
            for item in values:
                step()
                slots[this] = item
                slots[so_far] = result
                result = following(slots)
            return result

        return evaluate

    return Operator(name, children, build, folds=False)
