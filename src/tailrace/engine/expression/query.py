"""Reading the query of a `$match` into conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace.engine.expression import query_operators as tests
from tailrace.engine.expression.conditions import (
    Condition,
    ExpressionCondition,
    Fixed,
    Junction,
    Leaf,
    Not,
    Test,
    as_document,
)
from tailrace.engine.expression.failures import Failure, Unsupported, check, fail, leave_to_server
from tailrace.engine.expression.nodes import MAX_DEPTH
from tailrace.engine.expression.numbers import as_double
from tailrace.engine.expression.parsing import Scope, Version, parse_operand
from tailrace.engine.expression.rendering import render_document
from tailrace.engine.expression.values import Document, Regex, Value, is_number, text_of, truth
from tailrace.server_codes import BAD_VALUE, FAILED_TO_PARSE


def parse_query(query: Document, scope: Scope) -> Condition:
    """Read a query document."""
    return _parse(query, scope, top=True)


def _parse(query: Document, scope: Scope, *, top: bool) -> Condition:
    parts: list[Condition] = []
    for name, value in query.items():
        if name.startswith(b"$"):
            parse = _PATHLESS.get(name)
            if parse is None or (name == b"$sampleRate" and scope.context.version < (4, 4, 2)):
                leave_to_server(BAD_VALUE, f"unknown top level operator: {text_of(name)}{_hint(name, scope)}")
            part = parse(name, value, scope, top)
            if part is not None:
                parts.append(part)
            continue
        check(name.count(b".") < MAX_DEPTH, 5729100, "FieldPath is too long")
        if _is_expression(value):
            parts += _parse_operators(name, value, scope, top=top)
        elif type(value) is Regex:
            parts.append(Leaf(name, tests.regex(value.pattern, value.options, scope.context.version)))
        else:
            parts.append(Leaf(name, tests.comparison("$eq", value)))
    return parts[0] if len(parts) == 1 else Junction("and", parts)


def _hint(name: bytes, scope: Scope) -> str:
    version = scope.context.version
    if name == b"$not" and version >= (4, 4):
        return ". If you are trying to negate an entire expression, use $nor."
    if version >= (5, 0):
        return ". If you have a field name that starts with a '$' symbol, consider using $getField or $setField."
    return ""


def _is_expression(value: Value, *, partial_reference: bool = False) -> bool:
    """Say whether a value is `{$operator: ...}` and not a DBRef."""
    if type(value) is not Document:
        return False
    names = value.names()
    if not names or not names[0].startswith(b"$"):
        return False
    if partial_reference:
        return not {b"$ref", b"$id", b"$db"} & set(names)
    return not {b"$ref", b"$id"} <= set(names)


# --- operators without a path


def _parse_junction(name: bytes, value: Value, scope: Scope, top: bool) -> Condition:
    if type(value) is not list:
        fail(BAD_VALUE, f"{text_of(name)} must be an array")
    check(value, BAD_VALUE, "$and/$or/$nor must be a nonempty array")
    parts = []
    for item in value:
        if type(item) is not Document:
            fail(BAD_VALUE, "$or/$and/$nor entries need to be full objects")
        parts.append(_parse(item, scope, top=top))
    return Junction(text_of(name)[1:], parts)


def _parse_expr(name: bytes, value: Value, scope: Scope, top: bool) -> Condition:
    check(top, BAD_VALUE, "$expr can only be applied to the top-level document")
    node = parse_operand(value, scope)
    return ExpressionCondition(node, lambda: scope.context.slot_count)


def _parse_comment(name: bytes, value: Value, scope: Scope, top: bool) -> None:
    return None


def _parse_fixed(name: bytes, value: Value, scope: Scope, top: bool) -> Condition:
    number = tests.parse_integer(value, bits=64)
    message = f"{text_of(name)} must be an integer value of 1"
    check(number == 1, FAILED_TO_PARSE, message)
    return Fixed(name == b"$alwaysTrue")


def _parse_sample_rate(name: bytes, value: Value, scope: Scope, top: bool) -> Condition:
    check(top, BAD_VALUE, "$sampleRate can only be applied to the top-level document")
    check(is_number(value), BAD_VALUE, "argument to $sampleRate must be a numeric type")
    rate = as_double(value)
    inside = 0 <= rate <= 1
    check(inside, BAD_VALUE, "numeric argument to $sampleRate must be in [0, 1]")
    draw = Document.of({b"$lt": [Document.of({b"$rand": Document()}), rate]})
    node = parse_operand(rate == 1 if rate in (0, 1) else draw, scope)
    return ExpressionCondition(node, lambda: scope.context.slot_count)


def _parse_reference(name: bytes, value: Value, scope: Scope, top: bool) -> Condition:
    return Leaf(name, tests.comparison("$eq", value))


def _parse_where(name: bytes, value: Value, scope: Scope, top: bool) -> Condition:
    fail(BAD_VALUE, "$where is not allowed in this context")


def _parse_text(name: bytes, value: Value, scope: Scope, top: bool) -> Condition:
    fail(17313, "$match with $text is only allowed as the first pipeline stage")


def _parse_schema(name: bytes, value: Value, scope: Scope, top: bool) -> Condition:
    leave_to_server(BAD_VALUE, "unknown top level operator: $jsonSchema. It is not supported here.")


Pathless = Callable[[bytes, Value, Scope, bool], Condition | None]
_PATHLESS: Final[dict[bytes, Pathless]] = {
    b"$and": _parse_junction,
    b"$or": _parse_junction,
    b"$nor": _parse_junction,
    b"$expr": _parse_expr,
    b"$comment": _parse_comment,
    b"$alwaysTrue": _parse_fixed,
    b"$alwaysFalse": _parse_fixed,
    b"$sampleRate": _parse_sample_rate,
    b"$ref": _parse_reference,
    b"$id": _parse_reference,
    b"$db": _parse_reference,
    b"$where": _parse_where,
    b"$text": _parse_text,
    b"$jsonSchema": _parse_schema,
}


# --- operators on a path


def _parse_operators(path: bytes, operators: Document, scope: Scope, *, top: bool) -> list[Condition]:
    first = operators.names()[0]
    if first in (b"$near", b"$nearSphere", b"$geoNear") and type(operators.get(first)) in (Document, list):
        code = 5626500 if scope.context.version >= (5, 1) else BAD_VALUE
        fail(code, "$geoNear, $near, and $nearSphere are not allowed in this context")
    parts = []
    for name, value in operators.items():
        part = _parse_operator(path, name, value, operators, scope, top=top)
        if part is not None:
            parts.append(part)
    return parts


def _parse_operator(
    path: bytes, name: bytes, value: Value, siblings: Document, scope: Scope, *, top: bool
) -> Condition | None:
    if name == b"$not":
        return _parse_not(path, value, scope, top=top)
    operator = text_of(name)
    if name in _SIMPLE:
        return Leaf(path, _SIMPLE[name](operator, value, scope.context.version))
    if name == b"$ne":
        check(type(value) is not Regex, BAD_VALUE, "Can't have regex as arg to $ne.")
        return Not(Leaf(path, tests.comparison("$eq", value)))
    if name == b"$in" or name == b"$nin":
        leaf = Leaf(path, _parse_in(operator, value, scope))
        return Not(leaf) if name == b"$nin" else leaf
    if name == b"$exists":
        leaf = Leaf(path, tests.exists)
        return leaf if truth(value) else Not(leaf)
    if name == b"$type":
        return Leaf(path, tests.type_test(text_of(path), value))
    if name == b"$mod":
        return Leaf(path, tests.modulo(value, scope.context.version))
    if name == b"$size":
        return _parse_size(path, value)
    if name == b"$regex":
        return _parse_regex(path, siblings, scope)
    if name == b"$options":
        has_regex = b"$regex" in siblings.names()
        check(has_regex, BAD_VALUE, "$options needs a $regex")
        return None
    if name == b"$elemMatch":
        return _parse_elem_match(path, value, scope)
    if name == b"$all":
        return _parse_all(path, value, scope)
    if name in (b"$near", b"$nearSphere", b"$geoNear"):
        fail(BAD_VALUE, f"near must be first in: {render_document(siblings)}")
    if name == b"$where":
        fail(BAD_VALUE, "$where cannot be applied to a field")
    raise Unsupported(BAD_VALUE, f"unknown operator: {operator}")


def _comparison(name: str, value: Value, _: Version) -> Test:
    if name != "$eq":
        message = "Can't have RegEx as arg to predicate over field."
        check(type(value) is not Regex, BAD_VALUE, message)
    return tests.comparison(name, value)


_SIMPLE: Final[dict[bytes, Callable[[str, Value, Version], Test]]] = {
    b"$eq": _comparison,
    b"$lt": _comparison,
    b"$lte": _comparison,
    b"$gt": _comparison,
    b"$gte": _comparison,
    b"$bitsAllSet": tests.bit_test,
    b"$bitsAllClear": tests.bit_test,
    b"$bitsAnySet": tests.bit_test,
    b"$bitsAnyClear": tests.bit_test,
}
_ON_PATHS: Final = frozenset(
    {*_SIMPLE, b"$mod", b"$ne", b"$in", b"$nin", b"$exists", b"$type", b"$size", b"$regex", b"$options"}
    | {b"$elemMatch", b"$all", b"$near", b"$nearSphere", b"$geoNear", b"$geoWithin", b"$within"}
    | {b"$geoIntersects"}
)


def _parse_in(name: str, value: Value, scope: Scope) -> Test:
    if type(value) is not list:
        fail(BAD_VALUE, f"{name} needs an array")
    for item in value:
        check(not _is_expression(item), BAD_VALUE, "cannot nest $ under $in")
    return tests.membership(value, scope.context.version)


def _parse_not(path: bytes, value: Value, scope: Scope, *, top: bool) -> Condition:
    if type(value) is Regex:
        return Not(Leaf(path, tests.regex(value.pattern, value.options, scope.context.version)))
    if type(value) is not Document:
        fail(BAD_VALUE, "$not needs a regex or a document")
    check(value.names(), BAD_VALUE, "$not cannot be empty")
    return Not(Junction("and", _parse_operators(path, value, scope, top=top)))


def _parse_size(path: bytes, value: Value) -> Condition:
    try:
        size = tests.parse_integer(value, least=0)
    except Failure as failure:
        fail(BAD_VALUE, f"Failed to parse $size. {failure.message}")

    def test(array: Value) -> bool:
        return type(array) is list and len(array) == size

    return Leaf(path, test, whole_arrays=True)


def _parse_regex(path: bytes, operators: Document, scope: Scope) -> Condition:
    pattern, options = "", ""
    for name, value in operators.items():
        if name == b"$regex":
            if type(value) is Regex:
                pattern = value.pattern
                if value.options:
                    check(not options, 51074, "options set in both $regex and $options")
                    options = value.options
            elif type(value) is str:
                pattern = value
            else:
                fail(BAD_VALUE, "$regex has to be a string")
        elif name == b"$options":
            if type(value) is not str:
                fail(BAD_VALUE, "$options has to be a string")
            check(not options, 51075, "options set in both $regex and $options")
            options = value
    return Leaf(path, tests.regex(pattern, options, scope.context.version))


def _parse_elem_match(path: bytes, value: Value, scope: Scope) -> Condition:
    if type(value) is not Document:
        fail(BAD_VALUE, "$elemMatch needs an Object")
    if _is_expression(value, partial_reference=True) and value.names()[0] not in _PATHLESS:
        inner = Junction("and", _parse_operators(b"", value, scope, top=False))
        single = inner.bind_single()
        return Leaf(path, lambda array: type(array) is list and any(map(single, array)), whole_arrays=True)
    match = _parse(value, scope, top=False).bind()

    def test(array: Value) -> bool:
        return type(array) is list and any(match(as_document(item)) for item in array if type(item) in (Document, list))

    return Leaf(path, test, whole_arrays=True)


def _parse_all(path: bytes, value: Value, scope: Scope) -> Condition:
    if type(value) is not list:
        fail(BAD_VALUE, "$all needs an array")
    if not value:
        return Fixed(False)
    if _first_name(value[0]) == b"$elemMatch":
        for item in value:
            same = _first_name(item) == b"$elemMatch"
            check(same, BAD_VALUE, "$all/$elemMatch has to be consistent")
        parts = [_parse_elem_match(path, item.get(b"$elemMatch"), scope) for item in value]
        return Junction("and", parts)
    leaves: list[Condition] = []
    for item in value:
        if type(item) is Regex:
            leaves.append(Leaf(path, tests.regex(item.pattern, item.options, scope.context.version)))
            continue
        check(_first_name(item) not in _ON_PATHS, BAD_VALUE, "no $ expressions in $all")
        leaves.append(Leaf(path, tests.comparison("$eq", item)))
    return Junction("and", leaves)


def _first_name(value: Value) -> bytes:
    names = value.names() if type(value) is Document else []
    return names[0] if names else b""
