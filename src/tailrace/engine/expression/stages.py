"""The stages a change stream allows behind `$changeStream`, each read into something that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias

from tailrace.engine.expression.conditions import Condition, Junction, first_names
from tailrace.engine.expression.failures import Failure, check, fail
from tailrace.engine.expression.nodes import Node, Slots
from tailrace.engine.expression.parsing import Scope, Version, parse_operand
from tailrace.engine.expression.projection import Addition, Exclusion, Inclusion, ProjectionNode, leads_to
from tailrace.engine.expression.projection_parsing import parse_additions, parse_projection, parse_projection_4_2
from tailrace.engine.expression.query import parse_query
from tailrace.engine.expression.rendering import render, render_document
from tailrace.engine.expression.values import MISSING, Document, Value, expect, text_of, type_name, utf8

Run: TypeAlias = Callable[[Document], Document | None]
"""A bound stage: the document it makes of one, None when it filters it out."""


class Stage(Protocol):
    """One stage of the pipeline."""

    def optimize(self) -> None:
        """Compute what is constant."""

    def bind(self, slot_count: int) -> Run:
        """Give the callable."""

    def fields(self) -> frozenset[bytes] | None:
        """Name the top-level fields it reads; None when it needs the whole document."""


@contextmanager
def _context(stage: str) -> Iterator[None]:
    """Say in which stage the specification is invalid."""
    try:
        yield
    except Failure as failure:
        raise type(failure)(failure.code, f"Invalid {stage} :: caused by :: {failure.message}") from None


def _slots(document: Document, count: int) -> Slots:
    return [document] + [MISSING] * (count - 1)


class Match:
    """`$match`."""

    def __init__(self, name: str, value: Value, scope: Scope) -> None:
        if type(value) is not Document:
            fail(15959, "the match filter must be an expression in an object")
        self.condition: Condition = parse_query(value, scope)

    @classmethod
    def of(cls, conditions: Sequence[Condition]) -> Match:
        """Make a stage of conditions that must all hold."""
        match = cls.__new__(cls)
        match.condition = conditions[0] if len(conditions) == 1 else Junction("and", conditions)
        return match

    def optimize(self) -> None:
        """Compute what is constant in expressions."""
        self.condition.optimize()

    def bind(self, slot_count: int) -> Run:
        """Let a document pass, or not."""
        match = self.condition.bind()
        return lambda document: document if match(document) else None

    def fields(self) -> frozenset[bytes] | None:
        """Give the fields of the query."""
        return self.condition.fields()


class Projection:
    """A stage that is a tree of names."""

    _tree: ProjectionNode
    _kind: type[Inclusion] | type[Exclusion] | type[Addition]

    def optimize(self) -> None:
        """Compute what is constant."""
        self._tree.optimize()

    def preserves(self, path: bytes) -> bool:
        """Return whether what is at a path, and below it, is the same before and behind the stage."""
        if self._kind is Inclusion:
            return any(leads_to(kept, path) for kept in self._tree.leaf_paths())
        changed = self._tree.leaf_paths() if self._kind is Exclusion else self._tree.expression_paths()
        return not any(leads_to(other, path) or leads_to(path, other) for other in changed)

    def bind(self, slot_count: int) -> Run:
        """Apply the tree."""
        apply = self._kind(self._tree)
        return lambda document: apply(document, _slots(document, slot_count))

    def fields(self) -> frozenset[bytes] | None:
        """Give what an inclusion keeps and reads; the others pass on everything."""
        if self._kind is not Inclusion:
            return None
        names = {*self._tree.leaves, *self._tree.children}
        for node in self._tree.nodes():
            read = first_names(node)
            if read is None:
                return None
            names |= read
        return frozenset(names)


def _parse_projection(spec: Document, scope: Scope) -> tuple[bool, ProjectionNode]:
    parse = parse_projection if scope.context.version >= (4, 4) else parse_projection_4_2
    return parse(spec, scope)


class Project(Projection):
    """`$project`."""

    def __init__(self, name: str, value: Value, scope: Scope) -> None:
        if type(value) is not Document:
            fail(15969, "$project specification must be an object")
        with _context(name):
            included, self._tree = _parse_projection(value, scope)
        self._kind = Inclusion if included else Exclusion


class Unset(Projection):
    """`$unset`."""

    def __init__(self, name: str, value: Value, scope: Scope) -> None:
        if type(value) not in (str, list):
            fail(31002, "$unset specification must be a string or an array")
        names = value if type(value) is list else [value]
        check(names, 31119, "$unset specification must be a string or an array with at least one field")
        check(
            all(type(item) is str for item in names),
            31120,
            "$unset specification must be a string or an array containing only string values",
        )
        spec = Document.of({})
        with _context(name):
            for item in names:
                path = utf8(item)
                code = 31250 if scope.context.version >= (4, 4) else 40176
                check(path not in spec.names(), code, f"Path collision at {item}")
                spec.set(path, False)
            _, self._tree = _parse_projection(spec, scope)
        self._kind = Exclusion


class AddFields(Projection):
    """`$addFields`, also called `$set`."""

    def __init__(self, name: str, value: Value, scope: Scope) -> None:
        expect(value, Document, 40272, f"{name} specification stage must be an object, got ")
        with _context(name):
            if scope.context.version < (4, 4):
                check(value.names(), 40177, "specification must have at least one field")
            self._tree = parse_additions(value, scope)
        self._kind = Addition


class ReplaceRoot:
    """`$replaceRoot`, and `$replaceWith`, its short form."""

    def __init__(self, name: str, value: Value, scope: Scope) -> None:
        self._what = "'newRoot' expression " if name == "$replaceRoot" else "'replacement document' "
        self._node: Node = parse_operand(self._new_root(value) if name == "$replaceRoot" else value, scope)

    @staticmethod
    def _new_root(value: Value) -> Value:
        expect(value, Document, 40229, "expected an object as specification for $replaceRoot stage, got ")
        for name in value.names():
            if name != b"newRoot":
                shown = text_of(name)
                fail(40415, f"BSON field '$replaceRoot.{shown}' is an unknown field.")
        new_root = value.get(b"newRoot")
        if new_root is MISSING:
            fail(40414, "BSON field '$replaceRoot.newRoot' is missing but a required field")
        return new_root

    def optimize(self) -> None:
        """Compute what is constant."""
        self._node = self._node.optimize()

    def bind(self, slot_count: int) -> Run:
        """Put what the expression gives in the document's place."""
        evaluate, what = self._node.bind(), self._what

        def run(document: Document) -> Document:
            value = evaluate(_slots(document, slot_count))
            if type(value) is not Document:
                fail(
                    40228,
                    f"{what}must evaluate to an object, but resulting value was: "
                    f"{render(value)}. Type of resulting value: '{type_name(value)}'. Input "
                    f"document: {render_document(document)}",
                )
            return value

        return run

    def fields(self) -> frozenset[bytes] | None:
        """Give the fields the expression reads."""
        return first_names(self._node)


_DECISIONS: Final = {"DESCEND": "descend", "PRUNE": "prune", "KEEP": "keep"}


class Redact:
    """`$redact`: keep, prune or descend into each document, from the outside in."""

    def __init__(self, name: str, value: Value, scope: Scope) -> None:
        inner, (self._current,) = scope.define("CURRENT")
        self._node: Node = parse_operand(value, inner.with_constants(_DECISIONS))

    def optimize(self) -> None:
        """Compute what is constant."""
        self._node = self._node.optimize()

    def bind(self, slot_count: int) -> Run:
        """Decide about the document, and about those inside it."""
        evaluate, current = self._node.bind(), self._current

        def redact(document: Document, slots: Slots) -> Document | None:
            slots[current] = document
            decision = evaluate(slots)
            if decision == "keep":
                return document
            if decision == "prune":
                return None
            if decision != "descend":
                fail(
                    17053,
                    "$redact's expression should not return anything aside from the variables "
                    f"$$KEEP, $$DESCEND, and $$PRUNE, but returned {render(decision)}",
                )
            fields = {name: redact_value(item, slots) for name, item in document.items()}
            return Document.of({n: item for n, item in fields.items() if item is not MISSING})

        def redact_value(value: Value, slots: Slots) -> Value:
            if type(value) is Document:
                result = redact(value, slots)
                return MISSING if result is None else result
            if type(value) is list:
                items = [redact_value(item, slots) for item in value]
                return [item for item in items if item is not MISSING]
            return value

        return lambda document: redact(document, _slots(document, slot_count))

    def fields(self) -> None:
        """Need everything."""
        return


ALLOWED: Final[dict[str, Callable[[str, Value, Scope], Stage]]] = {
    "$match": Match,
    "$project": Project,
    "$unset": Unset,
    "$addFields": AddFields,
    "$set": AddFields,
    "$replaceRoot": ReplaceRoot,
    "$replaceWith": ReplaceRoot,
    "$redact": Redact,
}
SPLIT: Final = "$changeStreamSplitLargeEvent"
_FORBIDDEN: Final[dict[Version, str]] = {
    # Stages the servers know and do not permit in a change stream, by the version that brought them.
    (4, 2): "bucket bucketAuto changeStream collStats count currentOp facet geoNear graphLookup "
    "group indexStats limit listLocalSessions listSessions lookup merge out planCacheStats sample "
    "skip sort sortByCount unwind",
    (4, 4): "unionWith",
    (5, 0): "setWindowFields",
    (5, 1): "densify documents",
    (5, 3): "fill",
    (6, 0): "listCatalog shardedDataDistribution",
}


def is_forbidden(name: str, version: Version) -> bool:
    """Say whether a server of this version knows a stage but permits it in no change stream."""
    return any(since <= version and name[1:] in names.split() for since, names in _FORBIDDEN.items())
