"""Reading expressions: operands, variables in scope, and the registry of operators.

An operator registers itself with its name, the number of its operands and the server version that
brought it; an older server refuses it as unknown, and so does the engine in its dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from tailrace.engine.expression.failures import Failure, check, fail, leave_to_server
from tailrace.engine.expression.nodes import (
    NO_SLOT,
    ROOT_SLOT,
    ArrayLiteral,
    Associative,
    Constant,
    Evaluate,
    FieldPath,
    Node,
    ObjectLiteral,
    Operator,
    check_field_name,
    follow,
    split_path,
)
from tailrace.engine.expression.rendering import render_document
from tailrace.engine.expression.values import MISSING, Document, Value, is_nullish, text_of, type_name
from tailrace.server_codes import FAILED_TO_PARSE, INVALID_PIPELINE_OPERATOR

Version: TypeAlias = tuple[int, ...]


@dataclass(slots=True)
class Context:
    """What all expressions of one pipeline share."""

    version: Version
    constants: Mapping[str, Value]
    """The values of `$$NOW`, `$$CLUSTER_TIME` and the like."""
    slot_count: int = ROOT_SLOT + 1

    @property
    def path_hint(self) -> str:
        """Give what servers from 5.0 on add to refusals of field names."""
        return " Consider using $getField or $setField." if self.version >= (5, 0) else ""


@dataclass(frozen=True, slots=True)
class Scope:
    """The variables an expression may use."""

    context: Context
    slots: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, Value] = field(default_factory=dict)

    def define(self, *names: str) -> tuple[Scope, list[int]]:
        """Give a scope with new variables, and their slots."""
        first = self.context.slot_count
        self.context.slot_count += len(names)
        slots = list(range(first, first + len(names)))
        added = dict(zip(names, slots, strict=True))
        return replace(self, slots={**self.slots, **added}), slots

    def with_constants(self, constants: Mapping[str, Value]) -> Scope:
        """Give a scope with new variables of fixed value."""
        return replace(self, constants={**self.constants, **constants})

    def variable(self, name: str, names: list[bytes], text: str) -> Node:
        """Read a use of a variable, followed by field names."""
        if name in self.slots:
            return FieldPath(self.slots[name], names, text)
        if name in ("ROOT", "CURRENT"):
            return FieldPath(ROOT_SLOT, names, text)
        for constants in (self.constants, self.context.constants, {"REMOVE": MISSING}):
            if name in constants:
                return _ConstantVariable(constants[name], names, text)
        raise Failure(17276, f"Use of undefined variable: {name}")


class _ConstantVariable(FieldPath):
    """A variable of fixed value; it becomes a constant when the tree is optimized, not before.

    The difference shows where a literal is asked for, as in `$getField`.
    """

    __slots__ = ("_value",)

    def __init__(self, value: Value, names: list[bytes], text: str) -> None:
        super().__init__(NO_SLOT, names, text)
        self._value = value

    def optimize(self) -> Node:
        """Give the constant."""
        return Constant(follow(self._value, self.names, 0))

    def bind(self) -> Evaluate:
        """Give the value."""
        return self.optimize().bind()


def check_variable_for_reading(name: str, version: Version) -> None:
    """Refuse a name that no variable can have."""
    codes = (FAILED_TO_PARSE,) * 3 if version >= (4, 4) else (16869, 16870, 16871)
    _check_variable(name, lambda char: char.isalpha(), codes)


def check_variable_for_writing(name: str, version: Version) -> None:
    """Refuse a name that a user may not define; of the system's, only CURRENT."""
    codes = (FAILED_TO_PARSE,) * 3 if version >= (4, 4) else (16866, 16867, 16868)
    if name != "CURRENT":
        _check_variable(name, lambda char: "a" <= char <= "z", codes)


def _check_variable(name: str, starts: Callable[[str], bool], codes: tuple[int, ...]) -> None:
    check(name, codes[0], "empty variable names are not allowed")
    if not (ord(name[0]) > 127 or (name[0].isascii() and starts(name[0]))):
        fail(codes[1], f"'{name}' starts with an invalid character for a user variable name")
    for char in name[1:]:
        if not (ord(char) > 127 or char.isalnum() or char == "_"):
            fail(codes[2], f"'{name}' contains an invalid character for a variable name: '{char}'")


# --- operands


def parse_operand(value: Value, scope: Scope) -> Node:
    """Read any value that stands where an expression may stand."""
    if type(value) is str and value.startswith("$"):
        return parse_field_path(value, scope)
    if type(value) is Document:
        return parse_object(value, scope)
    if type(value) is list:
        return ArrayLiteral([parse_operand(item, scope) for item in value])
    return Constant(value)


def parse_field_path(text: str, scope: Scope) -> Node:
    """Read `$field.path` or `$$variable.path`."""
    check(len(text) >= 2, 16872, "'$' by itself is not a valid FieldPath")
    hint = scope.context.path_hint
    if not text.startswith("$$"):
        names = split_path("CURRENT." + text[1:], hint)
        return scope.variable("CURRENT", names[1:], text)
    variable = text[2:].split(".", 1)[0]
    check_variable_for_reading(variable, scope.context.version)
    node = scope.variable(variable, [], text)
    names = split_path(text[2:], hint)
    return scope.variable(variable, names[1:], text) if len(names) > 1 else node


def parse_object(document: Document, scope: Scope) -> Node:
    """Read `{$operator: ...}` or an object literal."""
    names = document.names()
    if names and names[0].startswith(b"$"):
        return parse_expression(document, scope)
    children = []
    for key, value in document.items():
        check_field_name(text_of(key), scope.context.path_hint)
        children.append(parse_operand(value, scope))
    return ObjectLiteral(names, children)


def parse_expression(document: Document, scope: Scope) -> Node:
    """Read `{$operator: operands}`."""
    names = document.names()
    if len(names) != 1:
        fail(15983, "An object representing an expression must have exactly one field: " + render_document(document))
    name = text_of(names[0])
    parse = _lookup(name, scope.context.version)
    if parse is None:
        leave_to_server(INVALID_PIPELINE_OPERATOR, f"Unrecognized expression '{name}'")
    return parse(document.get(names[0]), scope)


# --- the registry

Parser: TypeAlias = Callable[[Value, Scope], Node]
Delayed: TypeAlias = Callable[[], Value]
"""An operand that is computed when it is asked for."""
_F = TypeVar("_F", bound=Callable[..., Any])
_PARSERS: dict[str, tuple[Version, Parser]] = {}

OLDEST: Version = (4, 2)
"""The oldest server whose dialect is spoken; what it had already needs no version."""


def _lookup(name: str, version: Version) -> Parser | None:
    since, parse = _PARSERS.get(name, (OLDEST, None))
    return parse if version >= since else None


def operator_names(version: Version) -> list[str]:
    """List the operators that a server of this version knows and that are supported."""
    return sorted(name for name, (since, _) in _PARSERS.items() if since <= version)


def is_expression_name(name: str, version: Version) -> bool:
    """Say whether a server of this version knows an operator."""
    return _lookup(name, version) is not None


def parser(*names: str, since: Version = OLDEST) -> Callable[[_F], _F]:
    """Register a function `(name, value, scope) -> Node` that reads its operands itself."""

    def register(function: _F) -> _F:
        for name in names:
            _register(name, since, partial(function, name))
        return function

    return register


def _register(name: str, since: Version, parse: Parser) -> None:
    assert name not in _PARSERS, f"{name} is registered twice"
    _PARSERS[name] = (since, parse)


@dataclass(frozen=True, slots=True)
class Arity:
    """How many operands an operator takes."""

    least: int
    most: int

    def parse(self, name: str, value: Value, scope: Scope) -> list[Node]:
        """Read a list of operands, and refuse a wrong number of them."""
        operands = parse_operands(value, scope)
        count = len(operands)
        if self.least == self.most:
            check(
                count == self.least,
                16020,
                f"Expression {name} takes exactly {self.least} arguments. {count} were passed in.",
            )
        else:
            check(
                self.least <= count <= self.most,
                28667,
                f"Expression {name} takes at least {self.least} arguments, and at most "
                f"{self.most}, but {count} were passed in.",
            )
        return operands


def parse_operands(value: Value, scope: Scope) -> list[Node]:
    """Read a list of operands; a single one needs no brackets."""
    return [parse_operand(item, scope) for item in (value if type(value) is list else [value])]


def associative(name: str, *, commutative: bool) -> Callable[[_F], _F]:
    """Register an operator over any number of operands that may be grouped freely."""

    def register(build: _F) -> _F:
        def parse(name: str, value: Value, scope: Scope) -> Node:
            return Associative(name, parse_operands(value, scope), build, commutative=commutative)

        parser(name)(parse)
        return build

    return register


def function(
    name: str,
    *,
    arity: int | Arity = 1,
    since: Version = OLDEST,
    delayed: int | None = None,
    null_for_null: bool = False,
) -> Callable[[_F], _F]:
    """Register a plain function of the values of its operands.

    The operands from number `delayed` on come as calls that compute them: where the server looks at the
    first ones before it computes the others, a failure in these may never show. With `null_for_null` the function is
    not called when one of the others is nothing.
    """
    limits = Arity(arity, arity) if isinstance(arity, int) else arity

    def register(compute: _F) -> _F:
        def called(*values: Value) -> Value:
            return None if any(map(is_nullish, values[:delayed])) else compute(*values)

        chosen = called if null_for_null else compute

        def build(*operands: Evaluate) -> Evaluate:
            return call_with(chosen, operands) if delayed is None else call_delayed(chosen, operands, delayed)

        parser(name, since=since)(lambda name, value, scope: Operator(name, limits.parse(name, value, scope), build))
        return compute

    return register


def call_with(compute: Callable[..., Value], operands: tuple[Evaluate, ...]) -> Evaluate:
    """Bind a function of values to the callables of its operands."""
    if len(operands) == 1:
        (only,) = operands
        return lambda slots: compute(only(slots))
    if len(operands) == 2:
        first, second = operands
        return lambda slots: compute(first(slots), second(slots))
    return lambda slots: compute(*[operand(slots) for operand in operands])


def call_delayed(compute: Callable[..., Value], operands: tuple[Evaluate, ...], delayed: int) -> Evaluate:
    """Bind a function that gets its last operands as calls."""
    now, later = operands[:delayed], operands[delayed:]
    return lambda slots: compute(*[operand(slots) for operand in now], *[partial(operand, slots) for operand in later])


Read = Callable[[Value], Any]
"""Reads the value of one argument."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The named arguments of an operator, and the server's codes for what is wrong with them.

    Some operators read their arguments as they come (`in_order`), others look at all names first; those then read from
    the first of `names` to the last, or the other way round (`from_last`). It decides which of two errors is reported.
    """

    names: tuple[str, ...]
    not_object: tuple[int, str]
    unknown: tuple[int, str]
    required: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    in_order: bool = False
    from_last: bool = False

    def read(self, value: Value) -> dict[str, Value]:
        """Give the arguments by name, as they stand."""
        return self._read_in_order(value, lambda _, argument: argument)

    def parse(self, value: Value, scope: Scope, **readers: Read) -> list[Any]:
        """Read the arguments, as expressions or with their own readers, in the order of `names`.

        None stands for an argument that was left out.
        """

        def read(name: str, argument: Value) -> Any:
            return readers[name](argument) if name in readers else parse_operand(argument, scope)

        if self.in_order:
            nodes = self._read_in_order(value, read)
        else:
            given = self.read(value)
            order = reversed(self.names) if self.from_last else self.names
            nodes = {name: read(name, given[name]) for name in order if name in given}
        return [nodes.get(name) for name in self.names]

    def _read_in_order(self, value: Value, read: Callable[[str, Value], Any]) -> dict[str, Any]:
        if type(value) is not Document:
            fail(self.not_object[0], self.not_object[1].format(type_name(value)))
        given: dict[str, Any] = {}
        for key, argument in value.items():
            name = text_of(key)
            if name not in self.names:
                fail(self.unknown[0], self.unknown[1].format(name))
            given[name] = read(name, argument)
        for name, failure in self.required.items():
            if name not in given:
                fail(*failure)
        return given


def named(name: str, arguments: Arguments, *, since: Version = OLDEST) -> Callable[[_F], _F]:
    """Register `(version, operand callables) -> callable`: an operator with named arguments."""

    def register(build: _F) -> _F:
        def parse(name: str, value: Value, scope: Scope) -> Node:
            return Operator(name, arguments.parse(value, scope), partial(build, scope.context.version))

        parser(name, since=since)(parse)
        return build

    return register
