"""Operators on documents, and on timestamps."""

from __future__ import annotations

from typing import Final

from bson.int64 import Int64
from bson.timestamp import Timestamp

from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.meter import ELEMENT, spend
from tailrace.engine.expression.nodes import Constant, Evaluate, FieldPath, KeepsParts, Node, Slots
from tailrace.engine.expression.parsing import Arguments, Scope, function, parse_field_path, parse_operand, parser
from tailrace.engine.expression.rendering import render
from tailrace.engine.expression.values import (
    MISSING,
    Document,
    Value,
    expect,
    is_nullish,
    text_of,
    type_name,
    utf8,
)


@function("$objectToArray", null_for_null=True)
def object_to_array(value: Value) -> Value:
    """Turn a document into an array of names and values."""
    expect(value, Document, 40390, "$objectToArray requires a document input, found: ")
    spend(len(value.names()) * 10 * ELEMENT)
    return [Document.of({b"k": text_of(name), b"v": item}) for name, item in value.items()]


@function("$arrayToObject", null_for_null=True)
def array_to_object(value: Value) -> Value:
    """Turn an array of pairs, or of `{k, v}`, into a document."""
    expect(value, list, 40386, "$arrayToObject requires an array input, found: ")
    fields: dict[bytes, Value] = {}
    if value and type(value[0]) not in (list, Document):
        found = type_name(value[0])
        fail(40398, f"Unrecognised input type format for $arrayToObject: {found}")
    for item in value:
        name, content = _pair(item) if type(value[0]) is list else _key_and_value(item)
        fields[utf8(name)] = content
    return Document.of(fields)


_INCONSISTENT = (
    "$arrayToObject requires a consistent input format. Elements mustall be arrays or all be "
    "objects. {} was detected, now found: "
)


def _pair(item: Value) -> tuple[str, Value]:
    expect(item, list, 40396, _INCONSISTENT.format("Array"))
    check(len(item) == 2, 40397, f"$arrayToObject requires an array of size 2 arrays,found array of size: {len(item)}")
    key, value = item
    if type(key) is not str:
        fail(
            40395,
            "$arrayToObject requires an array of key-value pairs, where the key must be of type "
            f"string. Found key type: {type_name(key)}",
        )
    check("\0" not in key, 4940400, "Key field cannot contain an embedded null byte")
    return key, value


def _key_and_value(item: Value) -> tuple[str, Value]:
    expect(item, Document, 40391, _INCONSISTENT.format("Object"))
    count = len(item.names())
    check(
        count == 2,
        40392,
        f"$arrayToObject requires an object keys of 'k' and 'v'. Found incorrect number of keys:{count}",
    )
    key, value = item.get(b"k"), item.get(b"v")
    if key is MISSING or value is MISSING:
        fail(
            40393,
            "$arrayToObject requires an object with keys 'k' and 'v'. Missing either or both "
            f"keys from: {render(item)}",
        )
    if type(key) is not str:
        fail(
            40394,
            "$arrayToObject requires an object with keys 'k' and 'v', where the value of 'k' "
            f"must be of type string. Found type: {type_name(key)}",
        )
    check("\0" not in key, 4940401, "Key field cannot contain an embedded null byte")
    return key, value


@function("$bsonSize", since=(4, 4), null_for_null=True)
def bson_size(value: Value) -> Value:
    """Count the bytes of a document."""
    expect(value, Document, 31393, "$bsonSize requires a document input, found: ")
    return len(value.to_bytes())


_REFERENCE = "'{0}' is a field path reference which is not allowed in this context. Did you mean {{$literal: '{0}'}}?"


def _constant_name(operator: str, node: Node, codes: tuple[int, int, int]) -> bytes:
    """Read the name of a field, which must be a literal string."""
    if isinstance(node, FieldPath):
        fail(codes[0], _REFERENCE.format(node.text))
    needs = f"{operator} requires 'field' to evaluate to"
    if type(node) is not Constant:
        fail(codes[1], f"{needs} a constant, but got a non-constant argument")
    expect(node.value, str, codes[2], f"{needs} type String, but got ")
    return utf8(node.value)


@parser("$getField", since=(5, 0))
def parse_get_field(name: str, value: Value, scope: Scope) -> Node:
    """Read `field` and `input`, or the field alone."""
    field: Node | None = None
    source: Node | None = None
    if type(value) is Document:
        for key, argument in value.items():
            if field is None and source is None and key.startswith(b"$"):
                field = parse_operand(value, scope)
                source = parse_field_path("$$CURRENT", scope)
                break
            if key == b"field":
                field = parse_operand(argument, scope)
            elif key == b"input":
                source = parse_operand(argument, scope)
            else:
                fail(3041701, f"$getField found an unknown argument: {text_of(key)}")
    else:
        field = parse_operand(value, scope)
        source = parse_field_path("$$CURRENT", scope)
    if field is None:
        fail(3041702, "$getField requires 'field' to be specified")
    if source is None:
        fail(3041703, "$getField requires 'input' to be specified")
    key = _constant_name("$getField", field, (5654600, 5654601, 5654602))
    return KeepsParts("$getField", [source], lambda document: _build_get(document, key))


def _build_get(source: Evaluate, key: bytes) -> Evaluate:
    def evaluate(slots: Slots) -> Value:
        document = source(slots)
        if type(document) is Document:
            return document.get(key)
        return None if is_nullish(document) and document is not MISSING else MISSING

    return evaluate


def _set_arguments(name: str) -> Arguments:
    required = {
        "field": (4161102, f"{name} requires 'field' to be specified"),
        "value": (4161103, f"{name} requires 'value' to be specified"),
        "input": (4161109, f"{name} requires 'input' to be specified"),
    }
    if name == "$unsetField":
        del required["value"]
    return Arguments(
        names=tuple(required),
        in_order=True,
        not_object=(4161100, f"{name} only supports an object as its argument"),
        unknown=(4161101, name + " found an unknown argument: {}"),
        required=required,
    )


_SET_FIELD: Final = _set_arguments("$setField")
_UNSET_FIELD: Final = _set_arguments("$unsetField")


@parser("$setField", "$unsetField", since=(5, 0))
def parse_set_field(name: str, value: Value, scope: Scope) -> Node:
    """Read the field, the document and the new value."""
    if name == "$setField":
        field, new, source = _SET_FIELD.parse(value, scope)
    else:
        field, source = _UNSET_FIELD.parse(value, scope)
        new = Constant(MISSING)
    assert field is not None
    key = _constant_name(name, field, (4161108, 4161106, 4161107))
    return KeepsParts(name, [source, new], lambda document, value: _build_set(document, value, key))


def _build_set(source: Evaluate, new: Evaluate, key: bytes) -> Evaluate:
    def evaluate(slots: Slots) -> Value:
        document = source(slots)
        if is_nullish(document):
            return None
        if type(document) is not Document:
            fail(4161105, "$setField requires 'input' to evaluate to type Object")
        changed = document.copy()
        changed.set(key, new(slots))
        return changed

    return evaluate


def _timestamp_part(name: str, code: int, part: str) -> None:
    @function(name, since=(5, 1), null_for_null=True)
    def compute(value: Value) -> Value:
        expect(value, Timestamp, code, f" Argument to {name} must be a timestamp, but is ")
        return Int64(getattr(value, part))


_timestamp_part("$tsSecond", 5687301, "time")
_timestamp_part("$tsIncrement", 5687302, "inc")
