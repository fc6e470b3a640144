"""The types of BSON, by the names that MongoDB gives them: in `$type`, in `$convert`, in its messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from tailrace.raw import bson_bytes as raw

TYPE_NAMES: Final[Mapping[int, str]] = {
    raw.DOUBLE: "double", raw.STRING: "string", raw.DOCUMENT: "object", raw.ARRAY: "array",
    raw.BINARY: "binData", raw.UNDEFINED: "undefined", raw.OBJECT_ID: "objectId", raw.BOOL: "bool",
    raw.DATE: "date", raw.NULL: "null", raw.REGEX: "regex", raw.DB_POINTER: "dbPointer",
    raw.CODE: "javascript", raw.SYMBOL: "symbol", raw.CODE_WITH_SCOPE: "javascriptWithScope",
    raw.INT32: "int", raw.TIMESTAMP: "timestamp", raw.INT64: "long", raw.DECIMAL128: "decimal",
    raw.MIN_KEY: "minKey", raw.MAX_KEY: "maxKey",
}  # fmt: skip
"""The name of each type byte."""
TYPE_NUMBERS: Final[Mapping[str, int]] = {name: number for number, name in TYPE_NAMES.items()}
"""The type byte for each name."""

_DECODED: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (Int64, "long"),
    (DatetimeMS, "date"),
    (int, "int"),
    (float, "double"),
    (Code, "javascript"),
    (str, "string"),
    (Binary, "binData"),
    (bytes, "binData"),
    (list, "array"),
    (Timestamp, "timestamp"),
    (ObjectId, "objectId"),
    (datetime, "date"),
    (Regex, "regex"),
    (Decimal128, "decimal"),
    (MinKey, "minKey"),
    (MaxKey, "maxKey"),
    (Mapping, "object"),
)


def type_name(value: Any) -> str:
    """Give the name of a decoded value's type."""
    if value is None:
        return "null"
    for kind, name in _DECODED:
        if isinstance(value, kind):
            return name
    return "object"
