"""The tree an expression is read into: constants, field paths and operators.

A tree is first optimized, which computes what is constant and raises what would fail for every event,
then bound to a Python callable. The callable takes the slots of the variables: slot 0 is the document.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Final, TypeAlias

from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.meter import count
from tailrace.engine.expression.values import MISSING, Document, Value, utf8
from tailrace.server_codes import OVERFLOW

Slots: TypeAlias = list[Value]
"""The values of the variables while an expression runs."""
Evaluate: TypeAlias = Callable[[Slots], Value]
"""A bound expression."""

ROOT_SLOT = 0
NO_SLOT = -1
MAX_DEPTH = 200


class Node(ABC):
    """One part of an expression."""

    __slots__ = ()

    def optimize(self) -> Node:
        """Compute what does not depend on the document."""
        return self

    @abstractmethod
    def bind(self) -> Evaluate:
        """Give the callable that computes the value."""

    def field_paths(self) -> Iterator[FieldPath]:
        """Walk the field paths and variables that the expression reads."""
        yield from ()


class Constant(Node):
    """A value that is always the same."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def bind(self) -> Evaluate:
        """Give the value."""
        value = self.value
        return lambda slots: value


class FieldPath(Node):
    """A variable, and the path of names to follow from it."""

    __slots__ = ("names", "slot", "text")

    def __init__(self, slot: int, names: Sequence[bytes], text: str) -> None:
        self.slot = slot
        self.names = tuple(names)
        self.text = text

    def bind(self) -> Evaluate:
        """Follow the path; through arrays it collects what their documents have there."""
        slot, names = self.slot, self.names
        if not names:
            return lambda slots: slots[slot]
        if len(names) == 1:
            return _bind_field(slot, names[0])
        return lambda slots: follow(slots[slot], names, 0)

    def field_paths(self) -> Iterator[FieldPath]:
        """Give itself."""
        yield self


def _bind_field(slot: int, name: bytes) -> Evaluate:
    def evaluate(slots: Slots) -> Value:
        value = slots[slot]
        return value.get(name) if type(value) is Document else follow(value, (name,), 0)

    return evaluate


def follow(value: Value, names: Sequence[bytes], index: int) -> Value:
    """Follow the names from `index` on, as a field path does."""
    while index < len(names):
        if type(value) is Document:
            value = value.get(names[index])
            index += 1
        elif type(value) is list:
            found = (follow(item, names, index) for item in value if type(item) is Document)
            return [item for item in found if item is not MISSING]
        else:
            return MISSING
    return value


_BUILDERS: Final = frozenset(
    {"$concat", "$replaceAll", "$replaceOne", "$toUpper", "$toLower", "$substr", "$substrBytes", "$substrCP", "$trim"}
    | {"$ltrim", "$rtrim", "$toString", "$convert", "$split", "$concatArrays", "$slice", "$reverseArray", "$sortArray"}
    | {"$setUnion", "$setIntersection", "$setDifference", "$objectToArray", "$zip", "$firstN", "$lastN", "$maxN"}
    | {"$minN"}
)
"""The operators whose results may be large; the loops count their rounds themselves."""


class Operator(Node):
    """An operator and its operands; an operand that was left out is None."""

    __slots__ = ("_build", "_folds", "children", "name")

    def __init__(
        self, name: str, children: Sequence[Node | None], build: Callable[..., Evaluate], *, folds: bool = True
    ) -> None:
        self.name = name
        self.children = list(children)
        self._build = build
        self._folds = folds

    def optimize(self) -> Node:
        """Optimize the operands; without variable ones the operator is a constant."""
        self.children = [child and child.optimize() for child in self.children]
        if self._folds and all(child is None or type(child) is Constant for child in self.children):
            return Constant(self.bind()([]))
        return self

    def bind(self) -> Evaluate:
        """Build the callable from those of the operands."""
        evaluate = self._build(*(child and child.bind() for child in self.children))
        return (lambda slots: count(evaluate(slots))) if self.name in _BUILDERS else evaluate

    def field_paths(self) -> Iterator[FieldPath]:
        """Walk the field paths of the operands."""
        for child in self.children:
            if child is not None:
                yield from child.field_paths()


class KeepsParts(Operator):
    """An operator whose parts the server does not optimize."""

    __slots__ = ()

    def optimize(self) -> Node:
        """Leave everything as it is."""
        return self


class ObjectLiteral(Operator):
    """`{name: expression, ...}`; fields whose value is missing are left out."""

    __slots__ = ()

    def __init__(self, names: Sequence[bytes], children: Sequence[Node]) -> None:
        keys = tuple(names)

        def build(*operands: Evaluate) -> Evaluate:
            pairs = tuple(zip(keys, operands, strict=True))

            def evaluate(slots: Slots) -> Value:
                fields = {}
                for name, operand in pairs:
                    value = operand(slots)
                    if value is not MISSING:
                        fields[name] = value
                return Document.of(fields)

            return evaluate

        super().__init__("object", children, build)


class ArrayLiteral(Operator):
    """`[expression, ...]`; what is missing becomes null."""

    __slots__ = ()

    def __init__(self, children: Sequence[Node]) -> None:
        def build(*operands: Evaluate) -> Evaluate:
            def evaluate(slots: Slots) -> Value:
                values = [operand(slots) for operand in operands]
                return [None if value is MISSING else value for value in values]

            return evaluate

        super().__init__("array", children, build)


class Associative(Operator):
    """An operator whose constant operands the server computes together when it optimizes.

    With a commutative one they also move to the end. That decides number types: the sum of two constants
    can be an int64 already, and an int64 never shrinks again.
    """

    __slots__ = ("_commutative",)

    def __init__(
        self, name: str, children: Sequence[Node | None], build: Callable[..., Evaluate], *, commutative: bool
    ) -> None:
        super().__init__(name, children, build)
        self._commutative = commutative

    def optimize(self) -> Node:
        """Flatten nested uses of the operator and compute runs of constants."""
        optimized = super().optimize()
        if optimized is not self:
            return optimized
        pending: list[Node] = []
        kept: list[Node] = []
        for child in self._flattened():
            if type(child) is Constant:
                pending.append(child)
                continue
            if not self._commutative:
                kept += self._computed(pending)
                pending = []
            kept.append(child)
        self.children = [*kept, *self._computed(pending)]
        return self

    def _flattened(self) -> Iterator[Node]:
        for child in self.children:
            assert child is not None
            if isinstance(child, Associative) and type(child) is type(self) and child.name == self.name:
                yield from child._flattened()
            else:
                yield child

    def _computed(self, constants: list[Node]) -> list[Node]:
        if len(constants) < 2:
            return constants
        return [Constant(self._build(*(constant.bind() for constant in constants))([]))]


class LeftAssociative(Operator):
    """An operator that is computed from left to right: only constants at its beginning are computed ahead."""

    def optimize(self) -> Node:
        """Compute the constants that come first."""
        optimized = super().optimize()
        if optimized is not self:
            return optimized
        first = list(takewhile(lambda child: type(child) is Constant, self.children))
        if len(first) > 1:
            computed = self._build(*(child.bind() for child in first if child is not None))([])
            self.children = [Constant(computed), *self.children[len(first) :]]
        return self


_ALLOWED_DOLLAR_NAMES = frozenset({"$id", "$ref", "$db", "$sortKey", "$recordId"})


def check_field_name(name: str, hint: str) -> None:
    """Refuse a name that cannot stand in a field path; `hint` ends the message."""
    check(name, 15998, "FieldPath field names may not be empty strings.")
    if name.startswith("$") and name not in _ALLOWED_DOLLAR_NAMES:
        fail(16410, f"FieldPath field names may not start with '$'.{hint}")
    check("\0" not in name, 16411, "FieldPath field names may not contain '\0'.")
    check("." not in name, 16412, f"FieldPath field names may not contain '.'.{hint}")


def split_path(path: str, hint: str) -> list[bytes]:
    """Split a dotted path into its names, and refuse one that is none."""
    check(path, 40352, "FieldPath cannot be constructed with empty string")
    check(not path.endswith("."), 40353, "FieldPath must not end with a '.'.")
    names = path.split(".")
    check(len(names) <= MAX_DEPTH, OVERFLOW, "FieldPath is too long")
    for name in names:
        check_field_name(name, hint)
    return [utf8(name) for name in names]
