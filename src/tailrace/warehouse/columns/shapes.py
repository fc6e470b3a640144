"""The shapes of values: which column a BSON value asks for, and which column two values can share.

A shape is a plain value that JSON can write: the name of a kind (`"int"`), a document as a dictionary of shapes, an
array as a list with the shape of its elements, or None while nothing is known (null, an empty array).

Columns widen along this lattice and along no other way, because a query on the column keeps its meaning:

    int ──> long ──> double
              └────> decimal

Everything else (a string where numbers were, a document where a date was) leaves the column as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from bson.binary import UUID_SUBTYPE, Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from tailrace.errors import SettingsError

Shape: TypeAlias = "str | dict[str, Shape] | list[Shape] | None"
Columns: TypeAlias = dict[str, Shape]

KINDS: Final = {
    "bool": "boolean",
    "int": "int",
    "long": "bigint",
    "double": "double",
    "decimal": "decimal(38,18)",
    "string": "string",
    "objectId": "string",
    "date": "timestamp",
    "uuid": "string",
    "binary": "binary",
}
"""The kinds that have columns, with their types in Spark. All others (regex, code, timestamp, ...) are in `_rest`."""
COLUMN_TYPES: Final = {**KINDS, "variant": "variant"}
"""The types of all columns; `variant` is that of a whole document."""
WIDER: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"long", "double", "decimal"}),
    "long": frozenset({"double", "decimal"}),
}

_BY_TYPE: Final[Mapping[type, str]] = {
    bool: "bool",
    int: "int",
    Int64: "long",
    float: "double",
    Decimal128: "decimal",
    str: "string",
    ObjectId: "objectId",
    DatetimeMS: "date",
    bytes: "binary",
    Regex: "regex",
    Code: "code",
    Timestamp: "timestamp",
}


def shape_of(value: Any) -> Shape:
    """Give the shape of one decoded value."""
    kind = type(value)
    if value is None:
        return None
    if kind is dict:
        return {name: shape_of(inner) for name, inner in value.items()}
    if kind is list:
        element: Shape = None
        for inner in value:
            element = merged(element, shape_of(inner))
        return [element]
    if kind is Binary:
        return "uuid" if value.subtype == UUID_SUBTYPE and len(value) == 16 else f"binary{value.subtype}"
    return _BY_TYPE.get(kind, kind.__name__)


def merged(left: Shape, right: Shape) -> Shape:
    """Give the shape that takes both where there is one, else the left one."""
    if left == right or right is None:
        return left
    if left is None:
        return right
    if isinstance(left, dict) and isinstance(right, dict):
        return merged_documents(left, right)
    if isinstance(left, list) and isinstance(right, list):
        return [merged(left[0], right[0])]
    if isinstance(left, str) and isinstance(right, str):
        return _merged_kinds(left, right)
    return left


def merged_documents(left: Columns, right: Columns) -> Columns:
    """Give the fields of both, each with the shape that takes both where there is one."""
    both = dict(left)
    for name, shape in right.items():
        both[name] = merged(both.get(name), shape)
    return both


def _merged_kinds(left: str, right: str) -> str:
    if right in WIDER.get(left, ()):
        return right
    if left not in KINDS and right in KINDS:
        return right  # a kind without a column gives way to one that has a column
    return left


def shape_text(shape: Shape) -> str:
    """Give a shape in one line, for people: `{a: int, b: [string]}`."""
    if isinstance(shape, dict):
        return f"{{{', '.join(f'{name}: {shape_text(inner)}' for name, inner in shape.items())}}}"
    if isinstance(shape, list):
        return f"[{shape_text(shape[0])}]"
    return shape or "null"


def leaves(shape: Shape, path: str = "") -> Iterator[tuple[str, str]]:
    """Give every scalar in a shape with its path; the elements of an array are `[]`."""
    if isinstance(shape, dict):
        for name, inner in shape.items():
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(shape, list):
        yield from leaves(shape[0], f"{path}[]")
    elif shape is not None:
        yield path, shape


def parse_columns(text: str) -> Columns:
    """Read declared columns: `amount double, at date, user.name string, tags string[]`."""
    columns: Columns = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        path, _, kind = part.partition(" ")
        name = kind.strip()
        shape: Shape = name.removesuffix("[]")
        if shape not in KINDS:
            hint = f"Write `name kind`; the kinds are {', '.join(KINDS)}, and kind[] for arrays."
            raise SettingsError(f"{part!r} declares no column", hint=hint)
        shape = [shape] if name.endswith("[]") else shape
        for step in reversed(path.split(".")[1:]):
            shape = {step: shape}
        top = path.split(".")[0]
        columns[top] = merged(columns.get(top), shape)
    return columns
