"""The tree a `$match` is read into, and how its paths walk through documents and arrays.

A leaf tests the values its path leads to, one by one: each element of an array at the end of the path,
then the array itself; through arrays on the way it follows the documents in them and, when the next name
is a number, the element at that position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from tailrace.engine.expression.failures import fail
from tailrace.engine.expression.meter import walk
from tailrace.engine.expression.nodes import Evaluate, Node, Slots
from tailrace.engine.expression.parsing import Version
from tailrace.engine.expression.values import MISSING, Document, Value, truth
from tailrace.server_codes import BAD_VALUE

Test: TypeAlias = Callable[[Value], bool]
"""Says whether one value, perhaps MISSING, passes."""
Match: TypeAlias = Callable[[Document], bool]
"""Says whether a document passes."""


class Condition(ABC):
    """One part of a query."""

    __slots__ = ()

    def optimize(self) -> None:  # noqa: B027  (most parts have nothing to prepare)
        """Prepare the expressions inside."""

    @abstractmethod
    def bind(self) -> Match:
        """Give the callable that tests documents."""

    @abstractmethod
    def bind_single(self) -> Test:
        """Give the callable that tests one array element, for `$elemMatch` on values."""

    @abstractmethod
    def fields(self) -> frozenset[bytes] | None:
        """Name the top-level fields that are read; None when it can be any."""

    def movable_paths(self, version: Version) -> frozenset[bytes] | None:
        """Name the paths that are read; None when a server of this version does not move it before other stages."""
        return None

    def conjuncts(self) -> list[Condition]:
        """List conditions that must all hold."""
        return [self]


class Leaf(Condition):
    """A path and a test of what is there."""

    __slots__ = ("_names", "_test", "_whole")

    def __init__(self, path: bytes, test: Test, *, whole_arrays: bool = False) -> None:
        self._names = tuple(path.split(b"."))
        self._test = test
        self._whole = whole_arrays

    def bind(self) -> Match:
        """Test documents; paths of one name, and paths without arrays, take the short way."""
        names, test, whole = self._names, self._test, self._whole
        last = len(names) - 1

        def match(document: Document) -> bool:
            value: Value = document
            for index, name in enumerate(names):
                value = value.get(name)
                kind = type(value)
                if kind is list:
                    return any(map(test, _through(value, names[index + 1 :], whole)))
                if index < last and kind is not Document:
                    return test(MISSING)
            return test(value)

        return match

    def bind_single(self) -> Test:
        """Test one element; an operator on arrays needs it to be one."""
        return self._test

    def fields(self) -> frozenset[bytes]:
        """Give the first name of the path."""
        return frozenset({self._names[0]})

    def movable_paths(self, version: Version) -> frozenset[bytes] | None:
        """Give the path; operators on arrays do not move before 7.0."""
        return None if self._whole and version < (7, 0) else frozenset({b".".join(self._names)})


def values_at(document: Document, names: Sequence[bytes], whole: bool) -> Iterator[Value]:
    """Walk the values a path leads to from a document."""
    value: Value = document
    for index, name in enumerate(names):
        value = value.get(name)
        if type(value) is list:
            yield from _through(value, names[index + 1 :], whole)
            return
        if index + 1 < len(names) and type(value) is not Document:
            value = MISSING
            break
    yield value


def _through(array: list[Value], rest: Sequence[bytes], whole: bool) -> Iterator[Value]:
    """Walk the values in an array that a path has come to, with the rest of the path to go."""
    walk(len(array))
    if not rest or (rest[0] == b"" and len(rest) == 1):
        if not whole:
            yield from array
        yield array
        return
    wanted = int(rest[0]) if _is_position(rest[0]) else -1
    for index, item in enumerate(array):
        if type(item) is Document:
            yield from values_at(item, rest, whole)
        if index != wanted:
            continue
        if len(rest) == 1:
            yield item
        elif type(item) is Document:
            yield from values_at(item, rest[1:], whole)
        elif type(item) is list:
            yield from _through(item, rest[1:], whole)


def _is_position(name: bytes) -> bool:
    return name.isdigit() and (name == b"0" or not name.startswith(b"0"))


def as_document(value: Value) -> Document:
    """Look at an array as at a document with positions for names."""
    if type(value) is Document:
        return value
    return Document.of({b"%d" % index: item for index, item in enumerate(value)})


class Junction(Condition):
    """Several conditions: `and`, `or` or `nor`."""

    __slots__ = ("_kind", "children")

    def __init__(self, kind: str, children: Sequence[Condition]) -> None:
        self._kind = kind
        self.children = list(children)

    def optimize(self) -> None:
        """Prepare the parts."""
        for child in self.children:
            child.optimize()

    def bind(self) -> Match:
        """Combine the parts."""
        return self._combine([child.bind() for child in self.children])

    def bind_single(self) -> Test:
        """Combine the parts."""
        return self._combine([child.bind_single() for child in self.children])

    def _combine(self, parts: list[Callable[[Value], bool]]) -> Callable[[Value], bool]:
        if self._kind == "or":
            return lambda value: any(part(value) for part in parts)
        if self._kind == "nor":
            return lambda value: not any(part(value) for part in parts)
        if len(parts) == 1:
            return parts[0]
        return lambda value: all(part(value) for part in parts)

    def fields(self) -> frozenset[bytes] | None:
        """Give the fields of all parts."""
        return _union([child.fields() for child in self.children])

    def movable_paths(self, version: Version) -> frozenset[bytes] | None:
        """Give the paths of all parts."""
        return _union([child.movable_paths(version) for child in self.children])

    def conjuncts(self) -> list[Condition]:
        """Take a conjunction apart."""
        if self._kind != "and":
            return [self]
        return [part for child in self.children for part in child.conjuncts()]


def _union(named: list[frozenset[bytes] | None]) -> frozenset[bytes] | None:
    known = [names for names in named if names is not None]
    return frozenset().union(*known) if len(known) == len(named) else None


class Not(Condition):
    """The opposite of a condition."""

    __slots__ = ("_child",)

    def __init__(self, child: Condition) -> None:
        self._child = child

    def optimize(self) -> None:
        """Prepare the condition."""
        self._child.optimize()

    def bind(self) -> Match:
        """Negate."""
        match = self._child.bind()
        return lambda document: not match(document)

    def bind_single(self) -> Test:
        """Negate."""
        test = self._child.bind_single()
        return lambda value: not test(value)

    def fields(self) -> frozenset[bytes] | None:
        """Give the fields of the condition."""
        return self._child.fields()

    def movable_paths(self, version: Version) -> frozenset[bytes] | None:
        """Give the paths of the condition."""
        return self._child.movable_paths(version)


class Fixed(Condition):
    """A condition that always holds, or never does."""

    __slots__ = ("_holds",)

    def __init__(self, holds: bool) -> None:
        self._holds = holds

    def bind(self) -> Match:
        """Give the answer."""
        holds = self._holds
        return lambda _: holds

    def bind_single(self) -> Test:
        """Give the answer."""
        return self.bind()

    def fields(self) -> frozenset[bytes]:
        """Name nothing."""
        return frozenset()


class ExpressionCondition(Condition):
    """`$expr`: an aggregation expression whose value is the answer."""

    __slots__ = ("_node", "_slot_count")

    def __init__(self, node: Node, slot_count: Callable[[], int]) -> None:
        self._node = node
        self._slot_count = slot_count

    def optimize(self) -> None:
        """Compute what is constant."""
        self._node = self._node.optimize()

    def bind(self) -> Match:
        """Run the expression with fresh variables."""
        evaluate: Evaluate = self._node.bind()
        others = self._slot_count() - 1

        def match(document: Document) -> bool:
            slots: Slots = [document] + [MISSING] * others
            return truth(evaluate(slots))

        return match

    def bind_single(self) -> Test:
        """Refuse: an expression is about the whole document."""
        fail(BAD_VALUE, "$expr can only be applied to the top-level document")

    def fields(self) -> frozenset[bytes] | None:
        """Give the first names of the field paths."""
        return first_names(self._node)

    def movable_paths(self, version: Version) -> frozenset[bytes] | None:
        """Give the field paths, none for a constant; before 5.0 expressions do not move."""
        paths = [path.names for path in self._node.field_paths() if path.slot == 0]
        moves = version >= (5, 0) and all(paths)
        return frozenset(b".".join(names) for names in paths) if moves else None


def first_names(node: Node) -> frozenset[bytes] | None:
    """Name the top-level fields an expression reads; None when it reads the whole document."""
    names: set[bytes] = set()
    for path in node.field_paths():
        if path.slot == 0:
            if not path.names:
                return None
            names.add(path.names[0])
    return frozenset(names)
