"""Keeps null apart from the empty list where PyIceberg reads: its projection gives `[]` for a null list of structs.

PyIceberg 0.12 builds such a list anew from offsets and values and leaves the validity out. It has no door for another
projection, so its one method is wrapped, here and nowhere else. A release that keeps the nulls is left as it is, and so
is one in which the class has moved.
"""

from __future__ import annotations

from functools import wraps
from typing import Any


def keep_null_lists() -> None:
    """Let PyIceberg in this process give null for a list that is null; calling it again changes nothing."""
    from pyiceberg.io import pyarrow as arrow_io

    visitor: Any = getattr(arrow_io, "ArrowProjectionVisitor", None)
    projected = getattr(visitor, "list", None)
    if projected is None or hasattr(projected, "__wrapped__"):
        return

    @wraps(projected)
    def with_nulls(self: Any, list_type: Any, list_array: Any, value_array: Any) -> Any:
        result = projected(self, list_type, list_array, value_array)
        return result if result is None or result.null_count == list_array.null_count else masked(result, list_array)

    visitor.list = with_nulls


def masked(lists: Any, like: Any) -> Any:
    """Give lists that are null where those of another array of the same length are."""
    import pyarrow.compute as pc

    offsets = pc.add(lists.offsets, 0)  # a copy: a mask needs offsets that are no slice of others
    return type(lists).from_arrays(offsets, lists.values, type=lists.type, mask=like.is_null())
