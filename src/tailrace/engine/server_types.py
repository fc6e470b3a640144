"""The names a server's messages have for the types of decoded values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

_NAMES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (Int64, "long"),
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
    """Give the name of a value's BSON type, as in `$type` and in error messages."""
    if value is None:
        return "null"
    for kind, name in _NAMES:
        if isinstance(value, kind):
            return name
    return "object"
