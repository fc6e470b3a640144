"""The number that a hashed shard key stands for: the first half of an MD5 over the value's type and bytes.

Numbers of all types count as 64-bit integers, so that 1 and 1.0 are on one shard; the same function makes the entries
of hashed indexes.
"""

from __future__ import annotations

import math
from hashlib import md5
from typing import Any, Final

from bson.int64 import Int64

from tailrace import raw

_CANONICAL: Final = {
    raw.MIN_KEY: -1, raw.MAX_KEY: 127, raw.UNDEFINED: 0, raw.NULL: 5, raw.DOUBLE: 10, raw.INT32: 10, raw.INT64: 10,
    raw.DECIMAL128: 10, raw.STRING: 15, raw.SYMBOL: 15, raw.DOCUMENT: 20, raw.ARRAY: 25, raw.BINARY: 30,
    raw.OBJECT_ID: 35, raw.BOOL: 40, raw.DATE: 45, raw.TIMESTAMP: 47, raw.REGEX: 50, raw.DB_POINTER: 55, raw.CODE: 60,
    raw.CODE_WITH_SCOPE: 65,
}  # fmt: skip
_SEED: Final = raw.int32(0)
_END: Final = raw.int32(0)
"""How the end of an embedded document counts: as type 0, without a name."""
_LONGEST, _SHORTEST = 2**63 - 1, -(2**63)


def hash_of(value: Any) -> Int64:
    """Hash a value as the server does for shard keys and indexes."""
    kind, data = raw.from_python(value)
    digest = md5(_SEED + _content(kind, data, None), usedforsecurity=False).digest()
    return Int64(int.from_bytes(digest[:8], "little", signed=True))


def _content(kind: int, data: bytes, name: bytes | None) -> bytes:
    named = b"" if name is None else name + b"\x00"
    begin = raw.int32(_CANONICAL[kind]) + named
    if kind in (raw.DOCUMENT, raw.ARRAY):
        inner = (_content(kind, data[start:end], name) for kind, name, start, end in raw.elements(data))
        return begin + b"".join(inner) + _END
    if _CANONICAL[kind] == 10:
        return begin + raw.int64(_as_integer(raw.to_python(kind, data)))
    return begin + data


def _as_integer(number: Any) -> int:
    """Cut a number to 64 bits; what is no number counts as 0, what is too large as the largest."""
    value = number.to_decimal() if hasattr(number, "to_decimal") else number
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return _LONGEST if value > 0 else _SHORTEST
    return max(_SHORTEST, min(_LONGEST, int(value)))
