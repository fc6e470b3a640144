"""Comparison, boolean and conditional operators, and those that ask for a type or give a literal."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from tailrace.engine.expression.failures import Failure, check, fail
from tailrace.engine.expression.nodes import (
    ROOT_SLOT,
    Associative,
    Constant,
    Evaluate,
    FieldPath,
    Node,
    Operator,
    Slots,
)
from tailrace.engine.expression.ordering import compare
from tailrace.engine.expression.parsing import Arguments, Arity, Scope, function, parse_operand, parse_operands, parser
from tailrace.engine.expression.values import (
    Document,
    Value,
    expect,
    is_nullish,
    is_number,
    text_of,
    truth,
    type_name,
)

_COMPARISONS: dict[str, Callable[[int], Value]] = {
    "$cmp": lambda order: order,
    "$eq": lambda order: order == 0,
    "$ne": lambda order: order != 0,
    "$gt": lambda order: order > 0,
    "$gte": lambda order: order >= 0,
    "$lt": lambda order: order < 0,
    "$lte": lambda order: order <= 0,
}


def _comparison(name: str, judge: Callable[[int], Value]) -> None:
    function(name, arity=2)(lambda left, right: judge(compare(left, right)))


for _name, _judge in _COMPARISONS.items():
    _comparison(_name, _judge)


def _build_and(*operands: Evaluate) -> Evaluate:
    return lambda slots: all(truth(operand(slots)) for operand in operands)


def _build_or(*operands: Evaluate) -> Evaluate:
    return lambda slots: any(truth(operand(slots)) for operand in operands)


class _Junction(Associative):
    """`$and` or `$or`: a constant operand decides it, or does not matter."""

    __slots__ = ("_decisive",)

    def __init__(self, name: str, children: list[Node], *, decisive: bool) -> None:
        build = _build_or if decisive else _build_and
        super().__init__(name, children, build, commutative=True)
        self._decisive = decisive

    def optimize(self) -> Node:
        """Look at the constants, which now stand together at the end."""
        optimized = super().optimize()
        last = self.children[-1] if self.children else None
        if optimized is not self or type(last) is not Constant:
            return optimized
        if truth(last.value) is self._decisive:
            return Constant(self._decisive)
        self.children.pop()
        return self


@parser("$and", "$or")
def parse_junction(name: str, value: Value, scope: Scope) -> Node:
    """Read a conjunction or a disjunction."""
    return _Junction(name, parse_operands(value, scope), decisive=name == "$or")


@function("$not")
def negate(value: Value) -> Value:
    """Negate a condition."""
    return not truth(value)


class _Conditional(Operator):
    """`$cond`; with a constant condition it is one of its branches."""

    __slots__ = ()

    def __init__(self, children: list[Node]) -> None:
        super().__init__("$cond", children, _build_cond, folds=False)

    def optimize(self) -> Node:
        """Choose the branch when the condition is known."""
        super().optimize()
        condition, when_true, when_false = self.children
        assert when_true is not None
        assert when_false is not None
        if type(condition) is Constant:
            return when_true if truth(condition.value) else when_false
        return self


def _build_cond(condition: Evaluate, when_true: Evaluate, when_false: Evaluate) -> Evaluate:
    def evaluate(slots: Slots) -> Value:
        return when_true(slots) if truth(condition(slots)) else when_false(slots)

    return evaluate


_CONDITION: Final = Arguments(
    names=("if", "then", "else"),
    in_order=True,
    not_object=(0, ""),
    unknown=(17083, "Unrecognized parameter to $cond: {}"),
    required={
        "if": (17080, "Missing 'if' parameter to $cond"),
        "then": (17081, "Missing 'then' parameter to $cond"),
        "else": (17082, "Missing 'else' parameter to $cond"),
    },
)


@parser("$cond")
def parse_cond(name: str, value: Value, scope: Scope) -> Node:
    """Read a condition, with named or with positional operands."""
    if type(value) is Document:
        return _Conditional([node for node in _CONDITION.parse(value, scope) if node is not None])
    return _Conditional(Arity(3, 3).parse(name, value, scope))


class _IfNull(Operator):
    """`$ifNull`; constants that are null drop out, the first other one ends the list."""

    __slots__ = ()

    def __init__(self, children: list[Node]) -> None:
        super().__init__("$ifNull", children, _build_if_null)

    def optimize(self) -> Node:
        """Shorten the list."""
        optimized = super().optimize()
        if optimized is not self:
            return optimized
        *tried, last = self.children
        kept: list[Node | None] = []
        for child in tried:
            if type(child) is not Constant:
                kept.append(child)
            elif not is_nullish(child.value):
                kept.append(child)
                break
        else:
            kept.append(last)
        self.children = kept
        only = kept[0]
        return only if len(kept) == 1 and only is not None else self


def _build_if_null(*operands: Evaluate) -> Evaluate:
    *tried, last = operands

    def evaluate(slots: Slots) -> Value:
        for operand in tried:
            value = operand(slots)
            if not is_nullish(value):
                return value
        return last(slots)

    return evaluate


@parser("$ifNull")
def parse_if_null(name: str, value: Value, scope: Scope) -> Node:
    """Read the values to try; before 5.0 there are exactly two."""
    if scope.context.version < (5, 0):
        return _IfNull(Arity(2, 2).parse(name, value, scope))
    operands = parse_operands(value, scope)
    check(len(operands) >= 2, 1257300, f"$ifNull needs at least two arguments, had: {len(operands)}")
    return _IfNull(operands)


class _Switch(Operator):
    """`$switch`: pairs of case and result, then the default or None."""

    __slots__ = ()

    def __init__(self, branches: list[tuple[Node, Node]], default: Node | None) -> None:
        children = [node for branch in branches for node in branch]
        super().__init__("$switch", [*children, default], _build_switch, folds=False)

    def optimize(self) -> Node:
        """Drop the cases that never hold, and what follows one that always does."""
        *cases, default = self.children
        default = default and default.optimize()
        kept: list[Node | None] = []
        for case, result in zip(cases[::2], cases[1::2], strict=True):
            assert case is not None
            assert result is not None
            optimized = case.optimize()
            if type(optimized) is not Constant:
                kept += [optimized, result.optimize()]
            elif truth(optimized.value):
                default = result.optimize()
                break
        self.children = [*kept, default]
        if kept:
            return self
        if default is None:
            fail(40069, "Cannot execute a switch statement where all the cases evaluate to false without a default")
        return default


def _build_switch(*operands: Evaluate) -> Evaluate:
    *cases, default = operands
    branches = tuple(zip(cases[::2], cases[1::2], strict=True))

    def evaluate(slots: Slots) -> Value:
        for case, result in branches:
            if truth(case(slots)):
                return result(slots)
        if default is None:
            fail(40066, "$switch could not find a matching branch for an input, and no default was specified.")
        return default(slots)

    return evaluate


@parser("$switch")
def parse_switch(name: str, value: Value, scope: Scope) -> Node:
    """Read the branches and the default."""
    expect(value, Document, 40060, "$switch requires an object as an argument, found: ")
    branches: list[tuple[Node, Node]] = []
    default = None
    for key, argument in value.items():
        if key == b"branches":
            expect(argument, list, 40061, "$switch expected an array for 'branches', found: ")
            branches = [_parse_branch(branch, scope) for branch in argument]
        elif key == b"default":
            default = parse_operand(argument, scope)
        else:
            fail(40067, f"$switch found an unknown argument: {text_of(key)}")
    check(branches, 40068, "$switch requires at least one branch")
    if scope.context.version < (5, 1):
        children = [node for branch in branches for node in branch]
        return Operator(name, [*children, default], _build_switch, folds=False)
    return _Switch(branches, default)


_BRANCH: Final = Arguments(
    names=("case", "then"),
    in_order=True,
    not_object=(40062, "$switch expected each branch to be an object, found: {}"),
    unknown=(40063, "$switch found an unknown argument to a branch: {}"),
    required={
        "case": (40064, "$switch requires each branch have a 'case' expression"),
        "then": (40065, "$switch requires each branch have a 'then' expression."),
    },
)


def _parse_branch(branch: Value, scope: Scope) -> tuple[Node, Node]:
    case, result = _BRANCH.parse(branch, scope)
    assert case is not None
    assert result is not None
    return case, result


@parser("$literal", "$const")
def parse_literal(name: str, value: Value, scope: Scope) -> Node:
    """Take a value as it stands."""
    return Constant(value)


@function("$type")
def name_type(value: Value) -> Value:
    """Name the type of a value."""
    return type_name(value)


@function("$isNumber", since=(4, 4))
def judge_number(value: Value) -> Value:
    """Say whether a value is a number."""
    return is_number(value)


@parser("$rand", since=(4, 4, 2))
def parse_rand(name: str, value: Value, scope: Scope) -> Node:
    """Read a call of the random generator, which takes no argument."""
    if type(value) not in (Document, list):
        fail(10065, f"invalid parameter: expected an object ({name})")
    size = len(value) if type(value) is list else len(value.names())
    check(size == 0, 3040501, "$rand does not currently accept arguments")
    return _Random(name, [], lambda: lambda slots: random.random(), folds=False)


@parser("$meta")
def parse_meta(name: str, value: Value, scope: Scope) -> Node:
    """Refuse metadata: a change stream has none of what the operator asks for."""
    if type(value) is not str:
        fail(17307, "$meta only supports string arguments")
    if value in _METADATA:
        fail(40218, f"query requires {value} metadata, but it is not available")
    raise Failure(17308, f"Unsupported argument to $meta: {value}")


_METADATA: Final = frozenset(
    {"textScore", "randVal", "searchScore", "searchHighlights", "geoNearDistance", "geoNearPoint", "recordId"}
    | {"indexKey", "sortKey", "searchScoreDetails", "timeseriesBucketMinTime", "timeseriesBucketMaxTime"}
)


class _Random(Operator):
    """A random number; it claims to read the whole document, so that nobody asks it twice."""

    __slots__ = ()

    def field_paths(self) -> Iterator[FieldPath]:
        """Give the document itself."""
        yield FieldPath(ROOT_SLOT, (), "$$ROOT")
