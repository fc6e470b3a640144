"""The headers that records of every format have."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

Header = tuple[str, bytes]
Headers = list[Header]

SCHEMA_VERSION: Final = b"1"
"""The version of what the headers and values look like; it grows when a consumer has to know."""
OP_CODES: Final = {"insert": "c", "update": "u", "replace": "u", "delete": "d", "read": "r"}
"""The one-letter operations that flat records and Debezium's have."""
RECOVERED_HEADER: Final = ("recovered", b"true")
KEY_HEADER: Final = ("key", b"documentKey")
"""Says that the chosen key field was missing, and the documentKey stands in."""

_SCHEMA_HEADER = ("schemaVersion", SCHEMA_VERSION)
_DELTA, _MISSING, _LOOKUP, _POST = (("image", name) for name in (b"delta", b"missing", b"lookup", b"post"))


def headers_of(token: bytes, cluster_time: bytes, operation: Header) -> Headers:
    """Give the headers that every record has."""
    return [("token", token), ("clusterTime", cluster_time), operation, _SCHEMA_HEADER]


@lru_cache(maxsize=64)
def operation_header(operation: str) -> Header:
    """Give the header of an operationType."""
    return "operationType", operation.encode()


def image_of_update(*, has_image: bool, is_null: bool = False, is_later: bool = False) -> Header:
    """Give the header that says what an update tells of its document.

    `delta` is what changed, and nothing else was asked for. `post` is the document as the update left it, `lookup` one
    that was read later and may be newer. `missing` is one that was gone by then: no delete, which comes as one.
    """
    if is_null:
        return _MISSING
    if not has_image:
        return _DELTA
    return _LOOKUP if is_later else _POST
