"""Reading `$project` as servers before 4.4 did: the same trees, other rules and codes for what is refused."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.engine.expression.failures import FAILED_TO_PARSE, check
from tailrace.engine.expression.nodes import split_path
from tailrace.engine.expression.parsing import Scope, parse_expression, parse_operand
from tailrace.engine.expression.projection import ProjectionNode
from tailrace.engine.expression.projection_parsing import check_paths
from tailrace.engine.expression.values import Document, Value, is_number, name_text, truth

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
        _add(tree, split_path(name_text(name), scope.context.path_hint), value, scope, includes)
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


def _add(tree: ProjectionNode, path: list[bytes], value: Value, scope: Scope, includes: bool) -> None:
    if _is_flag(value):
        # `_id` may be the exception to the kind of the others; then it is not mentioned at all.
        if truth(value) == includes:
            tree.add_leaf(path)
    elif type(value) is not Document:
        tree.add_expression(path, parse_operand(value, scope))
    elif value.names()[0].startswith(b"$"):
        tree.add_expression(path, parse_expression(value, scope))
    else:
        for name, item in value.items():
            _add(tree, [*path, name], item, scope, includes)
