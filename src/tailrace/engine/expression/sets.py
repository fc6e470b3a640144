"""Set operators: arrays taken as sets. Results come in MongoDB's order of values."""

from __future__ import annotations

from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.nodes import Associative, Constant, Evaluate, Node, Operator, Slots
from tailrace.engine.expression.ordering import ValueSet
from tailrace.engine.expression.parsing import Arity, Scope, associative, call_with, function, parse_operands, parser
from tailrace.engine.expression.values import Value, is_nullish, truth, type_name


@associative("$setUnion", commutative=True)
def union(*operands: Evaluate) -> Evaluate:
    """Give what is in any of the arrays."""

    def evaluate(slots: Slots) -> Value:
        values = ValueSet()
        for operand in operands:
            array = operand(slots)
            if is_nullish(array):
                return None
            if type(array) is not list:
                fail(17043, "All operands of $setUnion must be arrays. One argument is of type: " + type_name(array))
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
        if type(array) is not list:
            found = type_name(array)
            fail(17047, f"All operands of $setIntersection must be arrays. One argument is of type: {found}")
        other = ValueSet(array)
        if common is None:
            common = other
        elif len(common) > 0:
            # The server keeps the values of the smaller set: they may differ in number type.
            small, large = (other, common) if len(common) > len(other) else (common, other)
            common = ValueSet([item for item in small.in_order() if item in large])
    return common.in_order() if common is not None else []


@function("$setDifference", arity=2)
def difference(left: Value, right: Value) -> Value:
    """Give what is in the first array only, in its order."""
    if is_nullish(left) or is_nullish(right):
        return None
    message = "both operands of $setDifference must be arrays. {} argument is of type: "
    if type(left) is not list:
        fail(17048, message.format("First") + type_name(left))
    if type(right) is not list:
        fail(17049, message.format("Second") + type_name(right))
    found = ValueSet(right)
    return [value for value in left if found.add(value)]


def _array(value: Value, code: int, position: int) -> ValueSet:
    if type(value) is not list:
        fail(code, f"All operands of $setEquals must be arrays. {position}-th argument is of type: " + type_name(value))
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
    if type(left) is not list:
        fail(code, _SUBSET.format("First") + type_name(left))
    if type(right) is not list:
        fail(17042, _SUBSET.format("Second") + type_name(right))
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
            if type(right.value) is not list:
                fail(17311, _SUBSET.format("Second") + type_name(right.value))
            self._build = lambda left, second: call_with(
                lambda one, other: _is_subset(one, other, 17310), (left, second)
            )
        return optimized


@parser("$setIsSubset")
def parse_set_is_subset(name: str, value: Value, scope: Scope) -> Node:
    """Read the two arrays."""
    operands = parse_operands(value, scope)
    Arity(2, 2).check(name, len(operands))
    return _SetIsSubset(name, operands, lambda *given: call_with(_is_subset, given))


@function("$allElementsTrue")
def all_true(value: Value) -> Value:
    """Say whether no element is false."""
    if type(value) is not list:
        fail(17040, f"$allElementsTrue's argument must be an array, but is {type_name(value)}")
    return all(truth(item) for item in value)


@function("$anyElementTrue")
def any_true(value: Value) -> Value:
    """Say whether some element is true."""
    if type(value) is not list:
        fail(17041, f"$anyElementTrue's argument must be an array, but is {type_name(value)}")
    return any(truth(item) for item in value)
