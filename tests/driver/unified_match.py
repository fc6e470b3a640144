"""How the unified test format compares what happened with what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson import Decimal128, Int64, ObjectId, Timestamp

BSON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "long": (int, Int64), "double": (float,), "string": (str,), "object": (Mapping,),
    "array": (list,), "bool": (bool,), "timestamp": (Timestamp,), "objectId": (ObjectId,), "decimal": (Decimal128,),
}  # fmt: skip


def matches(expected: Any, actual: Any, *, is_root: bool = True, path: str = "") -> None:
    """Assert that a value matches; documents at the root may have more keys than expected."""
    operator = _operator(expected)
    if operator == "$$unsetOrMatches":
        if actual is not None:
            matches(expected["$$unsetOrMatches"], actual, is_root=is_root, path=path)
    elif operator == "$$type":
        names = expected["$$type"] if isinstance(expected["$$type"], list) else [expected["$$type"]]
        assert isinstance(actual, tuple(kind for name in names for kind in BSON_TYPES[name])), f"{path}: {actual!r}"
    elif operator == "$$exists":
        assert (actual is not None) == expected["$$exists"], f"{path}: {actual!r}"
    elif isinstance(expected, Mapping):
        _document_matches(expected, actual, is_root, path)
    elif isinstance(expected, list):
        assert isinstance(actual, list), f"{path}: {actual!r} is not an array"
        assert len(actual) == len(expected), f"{path}: {actual!r} is not as long as {expected!r}"
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            matches(one, other, is_root=False, path=f"{path}.{index}")
    else:
        assert isinstance(actual, bool) == isinstance(expected, bool), f"{path}: {actual!r} is not {expected!r}"
        assert actual == expected, f"{path}: {actual!r} is not {expected!r}"


def _document_matches(expected: Mapping[str, Any], actual: Any, is_root: bool, path: str) -> None:
    assert isinstance(actual, Mapping), f"{path}: {actual!r} is not a document"
    for key, value in expected.items():
        operator = _operator(value)
        if operator == "$$exists":
            assert (key in actual) == value["$$exists"], f"{path}.{key}: {actual!r}"
        elif operator == "$$unsetOrMatches" and key not in actual:
            continue
        else:
            assert key in actual, f"{path}: no {key} in {actual!r}"
            matches(value, actual[key], is_root=False, path=f"{path}.{key}")
    if not is_root:
        assert set(actual) <= set(expected), f"{path}: {actual!r} has more than {expected!r}"


def _operator(expected: Any) -> str | None:
    if isinstance(expected, Mapping) and len(expected) == 1:
        (name,) = expected
        if str(name).startswith("$$"):
            return str(name)
    return None
