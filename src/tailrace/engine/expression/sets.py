"""Set operators: arrays taken as sets. Results come in MongoDB's order of values."""

from __future__ import annotations

from tailrace.engine.expression.failures import check
from tailrace.engine.expression.nodes import Associative, Constant, Evaluate, Node, Operator, Slots
from tailrace.engine.expression.ordering import ValueSet
from tailrace.engine.expression.parsing import Arity, Scope, associative, call_with, function, parse_operands, parser
from tailrace.engine.expression.values import Value, expect, is_nullish, truth


@associative("$setUnion", commutative=True)
def union(*operands: Evaluate) -> Evaluate:
    """Give what is in any of the arrays."""

    def evaluate(slots: Slots) -> Value:
        values = ValueSet()
        for operand in operands:
            array = operand(slots)
            if is_nullish(array):
                return None
            expect(array, list, 17043, "All operands of $setUnion must be arrays. One argument is of type: ")
            for value in array:
                values.add(value)
        return values.in_order()

    return evaluate


@parser("$setIntersection")
def parse_intersection(name: str, value: Value, scope: Scope) -> Node:
    """Read the arrays; servers before 4.4 stop looking once nothing is left."""
    stops = scope.context.version < (4, 4)

    def build(*operands: Evaluate) -> Evaluate:
        return lambda slots: _intersection(operands, slots, stops)

    return Associative(name, parse_operands(value, scope), build, commutative=True)


def _intersection(operands: tuple[Evaluate, ...], slots: Slots, stops: bool) -> Value:
    common: ValueSet | None = None
    for operand in operands:
        if stops and common is not None and len(common) == 0:
            break
        array = operand(slots)
        if is_nullish(array):
            return None
        expect(array, list, 17047, "All operands of $setIntersection must be arrays. One argument is of type: ")
        other = ValueSet(array)
        if common is None:
            common = other
        elif len(common) > 0:
            # The server keeps the values of the smaller set: they may differ in number type.
            small, large = (other, common) if len(common) > len(other) else (common, other)
            common = ValueSet([item for item in small.in_order() if item in large])
    return common.in_order() if common is not None else []


@function("$setDifference", arity=2, null_for_null=True)
def difference(left: Value, right: Value) -> Value:
    """Give what is in the first array only, in its order."""
    message = "both operands of $setDifference must be arrays. {} argument is of type: "
    expect(left, list, 17048, message.format("First"))
    expect(right, list, 17049, message.format("Second"))
    found = ValueSet(right)
    return [value for value in left if found.add(value)]


def _array(value: Value, code: int, position: int) -> ValueSet:
    expect(value, list, code, f"All operands of $setEquals must be arrays. {position}-th argument is of type: ")
    return ValueSet(value)


class _SetEquals(Operator):
    """`$setEquals`; constants are checked when the tree is optimized, and nothing is folded."""

    __slots__ = ()

    def optimize(self) -> Node:
        """Check the constant operands."""
        super().optimize()
        for position, child in enumerate(self.children, 1):
            if type(child) is Constant:
                _array(child.value, 5887502, position)
        return self


def _build_equals(*operands: Evaluate) -> Evaluate:
    def evaluate(slots: Slots) -> Value:
        first, *others = ((position, operand) for position, operand in enumerate(operands, 1))
        left = _array(first[1](slots), 17044, first[0])
        for position, operand in others:
            right = _array(operand(slots), 17044, position)
            if len(left) != len(right) or any(value not in right for value in left.in_order()):
                return False
        return True

    return evaluate


@parser("$setEquals")
def parse_set_equals(name: str, value: Value, scope: Scope) -> Node:
    """Read the arrays to compare."""
    operands = parse_operands(value, scope)
    count = len(operands)
    check(count >= 2, 17045, f"$setEquals needs at least two arguments had: {count}")
    if scope.context.version < (5, 2):
        return Operator(name, operands, _build_equals)
    return _SetEquals(name, operands, _build_equals, folds=False)


_SUBSET = "both operands of $setIsSubset must be arrays. {} argument is of type: "


def _is_subset(left: Value, right: Value, code: int = 17046) -> Value:
    expect(left, list, code, _SUBSET.format("First"))
    expect(right, list, 17042, _SUBSET.format("Second"))
    container = ValueSet(right)
    return all(value in container for value in left)


class _SetIsSubset(Operator):
    """`$setIsSubset`; with a constant second operand the codes are others."""

    __slots__ = ()

    def optimize(self) -> Node:
        """Check the constant."""
        optimized = super().optimize()
        right = self.children[1]
        if optimized is self and type(right) is Constant:
            expect(right.value, list, 17311, _SUBSET.format("Second"))
            self._build = lambda left, second: call_with(
                lambda one, other: _is_subset(one, other, 17310), (left, second)
            )
        return optimized


@parser("$setIsSubset")
def parse_set_is_subset(name: str, value: Value, scope: Scope) -> Node:
    """Read the two arrays."""
    operands = Arity(2, 2).parse(name, value, scope)
    return _SetIsSubset(name, operands, lambda *given: call_with(_is_subset, given))


@function("$allElementsTrue")
def all_true(value: Value) -> Value:
    """Say whether no element is false."""
    expect(value, list, 17040, "$allElementsTrue's argument must be an array, but is ")
    return all(truth(item) for item in value)


@function("$anyElementTrue")
def any_true(value: Value) -> Value:
    """Say whether some element is true."""
    expect(value, list, 17041, "$anyElementTrue's argument must be an array, but is ")
    return any(truth(item) for item in value)
