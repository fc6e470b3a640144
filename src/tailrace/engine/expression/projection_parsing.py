"""Reading the specifications of `$project`, `$addFields` and `$unset`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tailrace.engine.expression.failures import Failure, check, fail, leave_to_server
from tailrace.engine.expression.nodes import Node, split_path
from tailrace.engine.expression.parsing import Scope, is_expression_name, parse_expression, parse_operand
from tailrace.engine.expression.projection import ProjectionNode
from tailrace.engine.expression.rendering import render, render_document
from tailrace.engine.expression.values import Document, Value, is_number, text_of, truth
from tailrace.server_codes import FAILED_TO_PARSE, INVALID_PIPELINE_OPERATOR

_LEAF: Final = "leaf"


@dataclass(slots=True)
class _Spec:
    """A `$project` while it is read: what kind it is so far, and where something stands already."""

    scope: Scope
    inclusion: bool | None = None
    id_given: bool = False
    id_included: bool = False
    id_excluded: bool = False
    taken: dict[bytes, dict[bytes, object] | str] = field(default_factory=dict)
    leaves: list[tuple[list[bytes], bool]] = field(default_factory=list)
    expressions: list[tuple[list[bytes], Node]] = field(default_factory=list)

    def names(self, path: bytes) -> list[bytes]:
        """Split a path."""
        return split_path(text_of(path), self.scope.context.path_hint)

    def take(self, parent: list[bytes], names: list[bytes]) -> list[bytes]:
        """Claim a path for one thing; two claims collide."""
        full = [*parent, *names]
        here: dict[bytes, object] = self.taken  # type: ignore[assignment]
        for index, name in enumerate(full[:-1]):
            below = here.setdefault(name, {})
            if not isinstance(below, dict):
                rest = b".".join(full[index + 1 :])
                fail(31249, f"Path collision at {text_of(b'.'.join(names))} remaining portion " + text_of(rest))
            here = below
        if full[-1] in here:
            fail(31250, f"Path collision at {text_of(b'.'.join(names))}")
        here[full[-1]] = _LEAF
        return full

    def open(self, parent: list[bytes], names: list[bytes]) -> list[bytes]:
        """Go down a path that has more below it."""
        full = [*parent, *names]
        here: dict[bytes, object] = self.taken  # type: ignore[assignment]
        for index, name in enumerate(full):
            below = here.setdefault(name, {})
            if not isinstance(below, dict):
                shown = text_of(b".".join(names))
                if index == len(full) - 1:
                    fail(31250, f"Path collision at {shown}")
                fail(31249, f"Path collision at {shown} remaining portion ")
            here = below
        return full

    def decide(self, inclusion: bool, code: int, message: str) -> None:
        """Settle whether fields are named to keep or to drop; they cannot be mixed."""
        check(self.inclusion in (None, inclusion), code, message)
        self.inclusion = inclusion


def parse_projection(spec: Document, scope: Scope) -> tuple[bool, ProjectionNode]:
    """Read the specification of `$project`: whether it includes, and the tree."""
    check(spec.names(), 51272, "projection specification must have at least one field")
    reading = _Spec(scope)
    for name, value in spec.items():
        reading.id_given |= name == b"_id" or name.startswith(b"_id.")
        _parse_element(reading, [], name, value)
    inclusion = reading.inclusion
    if inclusion is None:
        inclusion = reading.id_included and not reading.id_excluded
    tree = ProjectionNode()
    if inclusion and not reading.id_given:
        tree.add_leaf([b"_id"])
    for names, included in reading.leaves:
        # `_id` may be the exception to the kind of the others; then it is not mentioned at all.
        if included == inclusion:
            tree.add_leaf(names)
    for names, expression in reading.expressions:
        tree.add_expression(names, expression)
    return inclusion, tree


def _parse_element(spec: _Spec, parent: list[bytes], name: bytes, value: Value) -> None:
    positional = name.endswith(b".$")
    check(not positional, 31324, "Cannot use positional projection in aggregation projection")
    check(
        b".$." not in name,
        31394,
        "As of 4.4, it's illegal to specify positional operator in the middle of a path."
        "Positional projection may only be used at the end, for example: a.b.$. If the query "
        "previously used a form like a.b.$.d, remove the parts following the '$' and the "
        "results will be equivalent.",
    )
    if type(value) is Document:
        _parse_object(spec, parent, name, value)
    elif type(value) is bool or is_number(value):
        _parse_flag(spec, parent, name, truth(value))
    else:
        node = parse_operand(value, spec.scope)
        names = spec.take(parent, spec.names(name))
        shown = f"{text_of(name)}: {render(value)}"
        spec.decide(True, 31310, f"Cannot use an expression {shown} in an exclusion projection")
        spec.expressions.append((names, node))


def _parse_flag(spec: _Spec, parent: list[bytes], name: bytes, included: bool) -> None:
    names = spec.take(parent, spec.names(name))
    spec.leaves.append((names, included))
    if name == b"_id" and not parent:
        spec.id_included |= included
        spec.id_excluded |= not included
        return
    field_name = text_of(name)
    if included:
        spec.decide(True, 31253, f"Cannot do inclusion on field {field_name} in exclusion projection")
    else:
        spec.decide(False, 31254, f"Cannot do exclusion on field {field_name} in inclusion projection")


def _parse_object(spec: _Spec, parent: list[bytes], name: bytes, value: Document) -> None:
    names = value.names()
    check(names, 51270, "An empty sub-projection is not a valid value. Found empty object at path")
    path = spec.names(name)
    if len(names) == 1 and names[0].startswith(b"$"):
        operator = text_of(names[0])
        if operator == "$elemMatch":
            fail(INVALID_PIPELINE_OPERATOR, "Cannot use $elemMatch in this context")
        if is_expression_name(operator, spec.scope.context.version):
            message = "Cannot use expression other than $meta in exclusion projection"
            spec.decide(True, 31252, message)
            node = parse_expression(value, spec.scope)
            spec.expressions.append((spec.take(parent, path), node))
            return
        try:
            spec.names(names[0])
        except Failure:
            leave_to_server(31325, f"Unknown expression {operator}")
    below = spec.open(parent, path)
    for key, item in value.items():
        _parse_element(spec, below, key, item)


# --- $addFields


@dataclass(slots=True)
class _AddSpec:
    """An `$addFields` while it is checked; `paths` holds all paths so far."""

    scope: Scope
    whole: Document
    paths: list[tuple[bytes, ...]] = field(default_factory=list)

    def claim(self, path: list[bytes]) -> None:
        """Refuse a path that stands already, or that is above or below one that does."""
        mine = tuple(path)
        for other in self.paths:
            shorter = min(len(mine), len(other))
            if mine[:shorter] == other[:shorter]:
                fail(
                    40176,
                    "specification contains two conflicting paths. Cannot specify both "
                    f"'{text_of(b'.'.join(mine))}' and '{text_of(b'.'.join(other))}': " + render_document(self.whole),
                )
        self.paths.append(mine)


def parse_additions(spec: Document, scope: Scope) -> ProjectionNode:
    """Read the specification of `$addFields`."""
    check_paths(spec, scope)
    tree = ProjectionNode()
    for name, value in spec.items():
        _add(tree, split_path(text_of(name), scope.context.path_hint), value, scope)
    return tree


def check_paths(spec: Document, scope: Scope) -> None:
    """Refuse a specification whose paths, or nested objects, contradict each other."""
    reading = _AddSpec(scope, spec)
    for name, value in spec.items():
        _check_addition(reading, split_path(text_of(name), scope.context.path_hint), value)


def _check_addition(spec: _AddSpec, path: list[bytes], value: Value) -> None:
    if type(value) is not Document:
        spec.claim(path)
        return
    names = value.names()
    if not names and spec.scope.context.version >= (7, 0):
        spec.claim(path)
        return
    if not names:
        fail(40180, "an empty object is not a valid value. Found empty object at path " + text_of(b".".join(path)))
    for name, item in value.items():
        if name.startswith(b"$"):
            check(
                len(names) == 1,
                40181,
                "an expression specification must contain exactly one field, the name of the "
                f"expression. Found {len(names)} fields in {render_document(value)}, while "
                f"parsing object {render_document(spec.whole)}",
            )
            spec.claim(path)
            continue
        if b"." in name:
            fail(
                40183,
                f"cannot use dotted field name '{text_of(name)}' in a sub object: " + render_document(spec.whole),
            )
        below = split_path(text_of(b".".join([*path, name])), spec.scope.context.path_hint)
        _check_addition(spec, below, item)


_NO_EXCLUSION = "Bad projection specification, cannot exclude fields other than '_id' in an inclusion projection"
_NO_INCLUSION = (
    "Bad projection specification, cannot include fields or add computed fields during an exclusion projection"
)


@dataclass(slots=True)
class _Kind:
    """Whether a projection names what to keep or what to drop, as far as it is known."""

    includes: bool | None = None

    def decide(self, includes: bool, code: int, message: str) -> None:
        """Settle it; it cannot be both."""
        check(self.includes in (None, includes), code, message)
        self.includes = includes


def parse_projection_4_2(spec: Document, scope: Scope) -> tuple[bool, ProjectionNode]:
    """Read the specification of `$project`: whether it includes, and the tree."""
    check(spec.names(), 40177, "specification must have at least one field")
    check_paths(spec, scope)
    kind = _Kind()
    for name, value in spec.items():
        _classify(kind, name, value)
    if spec.names() == [b"_id"] and _is_flag(spec.get(b"_id")) and not truth(spec.get(b"_id")):
        kind.includes = False
    includes = kind.includes is not False
    tree = ProjectionNode()
    if includes and not any(name == b"_id" or name.startswith(b"_id.") for name in spec.names()):
        tree.add_leaf([b"_id"])
    for name, value in spec.items():
        _add(tree, split_path(text_of(name), scope.context.path_hint), value, scope, includes)
    return includes, tree


def _is_flag(value: Value) -> bool:
    return type(value) is bool or is_number(value)


def _classify(kind: _Kind, path: bytes, value: Value) -> None:
    if type(value) is Document:
        for name, item in value.items():
            if name.startswith(b"$"):
                kind.decide(True, 40182, _NO_INCLUSION)
            else:
                _classify(kind, path + b"." + name, item)
    elif path == b"_id":
        if not _is_flag(value):
            message = "Bad projection specification, '_id' may not be a computed field in an exclusion projection"
            kind.decide(True, FAILED_TO_PARSE, message)
    elif _is_flag(value) and not truth(value):
        kind.decide(False, 40178, _NO_EXCLUSION)
    else:
        kind.decide(True, 40179, _NO_INCLUSION)


def _add(tree: ProjectionNode, path: list[bytes], value: Value, scope: Scope, includes: bool | None = None) -> None:
    """Add what stands at a path; `includes` is None for `$addFields`, which has no flags."""
    if includes is not None and _is_flag(value):
        # `_id` may be the exception to the kind of the others; then it is not mentioned at all.
        if truth(value) == includes:
            tree.add_leaf(path)
    elif type(value) is not Document or not value.names():
        tree.add_expression(path, parse_operand(value, scope))
    elif value.names()[0].startswith(b"$"):
        tree.add_expression(path, parse_expression(value, scope))
    else:
        for name, item in value.items():
            _add(tree, [*path, name], item, scope, includes)
