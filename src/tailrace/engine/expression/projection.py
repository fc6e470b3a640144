"""What `$project`, `$addFields` and `$unset` do to a document: a tree of names with things to do.

A node keeps (or drops) fields, descends into others, and computes new ones. Through arrays it works on
every element. Kept fields stay in the order of the document; computed ones that are new come after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from tailrace.engine.expression.nodes import Evaluate, Node, Slots
from tailrace.engine.expression.values import MISSING, Document, Value

Apply: TypeAlias = Callable[[Document, Slots], Document]


class ProjectionNode:
    """One level of a projection."""

    __slots__ = ("children", "computes", "expressions", "leaves", "order")

    def __init__(self) -> None:
        self.leaves: set[bytes] = set()
        self.children: dict[bytes, ProjectionNode] = {}
        self.expressions: dict[bytes, Node] = {}
        self.order: list[bytes] = []
        self.computes = False

    def child(self, name: bytes) -> ProjectionNode:
        """Give the node below a name; make it when there is none."""
        if name not in self.children:
            self.children[name] = ProjectionNode()
            self.order.append(name)
        return self.children[name]

    def add_leaf(self, names: list[bytes]) -> None:
        """Keep, or drop, the field at a path."""
        node = self
        for name in names[:-1]:
            node = node.child(name)
        node.leaves.add(names[-1])

    def add_expression(self, names: list[bytes], expression: Node) -> None:
        """Compute the field at a path."""
        node = self
        for name in names[:-1]:
            node.computes = True
            node = node.child(name)
        node.computes = True
        node.expressions[names[-1]] = expression
        node.order.append(names[-1])

    def optimize(self) -> None:
        """Compute what is constant."""
        self.expressions = {name: node.optimize() for name, node in self.expressions.items()}
        for child in self.children.values():
            child.optimize()

    def leaf_paths(self, prefix: bytes = b"") -> Iterator[bytes]:
        """Walk the paths that are kept, or dropped."""
        yield from (prefix + name for name in self.leaves)
        for name, child in self.children.items():
            yield from child.leaf_paths(prefix + name + b".")

    def expression_paths(self, prefix: bytes = b"") -> Iterator[bytes]:
        """Walk the paths that are computed."""
        yield from (prefix + name for name in self.expressions)
        for name, child in self.children.items():
            yield from child.expression_paths(prefix + name + b".")

    def nodes(self) -> Iterator[Node]:
        """Walk the expressions of the tree."""
        yield from self.expressions.values()
        for child in self.children.values():
            yield from child.nodes()


def leads_to(path: bytes, other: bytes) -> bool:
    """Return whether a path is the beginning of another, or that itself."""
    return other == path or other.startswith(path + b".")


class Inclusion:
    """`$project` that names what to keep."""

    def __init__(self, tree: ProjectionNode) -> None:
        self._tree = tree
        # Elements that are no documents leave an array for good, unless fields are computed in them.
        self._keep_places = tree.computes
        self._compute = bind_computations(tree)

    def __call__(self, document: Document, slots: Slots) -> Document:
        """Apply it."""
        result = self._include(self._tree, document)
        return self._compute(result, slots) if self._tree.computes else result

    def _include(self, tree: ProjectionNode, document: Document) -> Document:
        fields: dict[bytes, Value] = {}
        for name in document.names():
            if name in tree.leaves:
                fields[name] = document.get(name)
            elif name in tree.children:
                fields[name] = self._include_value(tree.children[name], document.get(name))
        return Document.of(fields)

    def _include_value(self, tree: ProjectionNode, value: Value) -> Value:
        if type(value) is Document:
            return self._include(tree, value)
        if type(value) is not list:
            return MISSING
        items = [self._include_value(tree, item) for item in value]
        return items if self._keep_places else [item for item in items if item is not MISSING]


class Exclusion:
    """`$project` or `$unset` that names what to drop."""

    def __init__(self, tree: ProjectionNode) -> None:
        self._tree = tree

    def __call__(self, document: Document, slots: Slots) -> Document:
        """Apply it."""
        return _exclude(self._tree, document)


def _exclude(tree: ProjectionNode, document: Document) -> Document:
    result = document.copy()
    for name in document.names():
        if name in tree.leaves:
            result.set(name, MISSING)
        elif name in tree.children:
            result.set(name, _exclude_value(tree.children[name], document.get(name)))
    return result


def _exclude_value(tree: ProjectionNode, value: Value) -> Value:
    if type(value) is Document:
        return _exclude(tree, value)
    if type(value) is list:
        return [_exclude_value(tree, item) for item in value]
    return value


class Addition:
    """`$addFields`: everything stays, and fields are computed."""

    def __init__(self, tree: ProjectionNode) -> None:
        self._compute = bind_computations(tree)

    def __call__(self, document: Document, slots: Slots) -> Document:
        """Apply it."""
        return self._compute(document.copy(), slots)


def bind_computations(tree: ProjectionNode) -> Apply:
    """Give the callable that sets the computed fields of a document, in place.

    A field that is only looked for, and not there, still takes its place: a later stage that sets it puts it there.
    """
    leaves: dict[bytes, Evaluate] = {name: node.bind() for name, node in tree.expressions.items()}
    deeper = {name: (bind_computations(child), child.computes) for name, child in tree.children.items()}
    order = tuple(tree.order)

    def compute(document: Document, slots: Slots) -> Document:
        for name in order:
            if name in deeper:
                document.set(name, _compute_value(*deeper[name], document.get(name), slots))
            else:
                document.set(name, leaves[name](slots))
        return document

    return compute


def _compute_value(compute: Apply, computes: bool, value: Value, slots: Slots) -> Value:
    if type(value) is list:
        return [_compute_value(compute, computes, item, slots) for item in value]
    if type(value) is Document:
        return compute(value.copy(), slots)
    # What is no document becomes one, if there is something to put into it.
    return compute(Document(), slots) if computes else value
