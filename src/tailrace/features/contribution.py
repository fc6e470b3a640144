"""What a document contributes to the features of its entity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

import bson
import orjson
from bson import json_util
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId

from tailrace import raw
from tailrace.features.definition import Definition, Kind
from tailrace.features.windows import BEGINNING
from tailrace.raw import extended_json

BUCKETS: Final = 4096
"""Of approximate counting: an entity never has more entries than these, and counts up to 10,000 are good to 2 %."""
Seen = dict[str, Any]
"""The fields of a document that a definition looks at, by path; those that are not there are left out."""


def seen_of(definition: Definition, document: bytes) -> Seen:
    """Take what the definition looks at out of a BSON document; nothing else is decoded."""
    found = []
    for path in definition.paths:
        name = path.encode()
        span = raw.find_path(document, *name.split(b"."))
        if span is not None:
            found.append(raw.element(span[0], name, document[span[1] : span[2]]))
    seen: Seen = extended_json.decode(raw.document(*found))
    return seen


def updated(seen: Seen, update: bytes, paths: list[str]) -> Seen | None:
    """Give what is seen after an update, by its description; None when that does not tell it (a part of a field)."""
    description = extended_json.decode(update)
    changed, removed = description.get("updatedFields", {}), description.get("removedFields", ())
    truncated = [item["field"] for item in description.get("truncatedArrays") or ()]
    result = dict(seen)
    for path in paths:
        if any(_is_inside(name, path) for name in (*changed, *removed, *truncated)):
            return None
        for name in removed:
            if name == path or _is_inside(path, name):
                result.pop(path, None)
        for name, value in changed.items():
            if name == path or _is_inside(path, name):
                _put(result, path, value, path[len(name) + 1 :])
    return result


def _is_inside(path: str, outer: str) -> bool:
    return path.startswith(f"{outer}.")


def _put(seen: Seen, path: str, value: Any, rest: str) -> None:
    for name in rest.split(".") if rest else ():
        if not isinstance(value, Mapping) or name not in value:
            seen.pop(path, None)
            return
        value = value[name]
    seen[path] = value


def to_text(seen: Seen) -> str:
    """Give the form in which Redis keeps what was seen."""
    return extended_json.canonical(seen).decode()


def from_text(text: str) -> Seen:
    """Read what `to_text` gave."""
    options = json_util.JSONOptions(datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_MS)
    found: Seen = json_util.loads(text, json_options=options)
    return found


def entity_of(definition: Definition, seen: Seen) -> str | None:
    """Give the entity as text; a document without one belongs to nobody."""
    value = seen.get(definition.entity)
    return None if value is None else text_of(value)


def text_of(value: Any) -> str:
    """Give a value as the text that people would write for it."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, ObjectId):
        return value.binary.hex()
    return extended_json.relaxed_of(value).decode()


def row_of(definition: Definition, seen: Seen, version: str) -> str:
    """Give the row that `keep.lua` works with."""
    time = seen.get(definition.time)
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    values: dict[str, str] = {}
    for feature in definition.features:
        value = seen.get(feature.of) if feature.of else None
        if feature.of is None or value is None:
            continue
        if feature.kind is Kind.LAST:
            values[feature.of] = extended_json.relaxed_of(value).decode()
        elif feature.kind is Kind.DISTINCT:
            text = text_of(value)
            texts[feature.source] = _bucket(text) if feature.approximate else text
        else:
            number = number_of(value)
            if number is not None:
                numbers[feature.of] = number
    at = int(time) if isinstance(time, DatetimeMS) else BEGINNING
    return orjson.dumps({"v": version, "t": at, "n": numbers, "s": texts, "l": values}).decode()


def _bucket(text: str) -> str:
    """Give where approximate counting puts a text; a checksum would put similar texts unevenly."""
    return str(int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little") % BUCKETS)


def number_of(value: Any) -> float | None:
    """Give a number as MongoDB's $sum would take it; None for everything that is none."""
    if isinstance(value, Decimal128):
        value = float(value.to_decimal())
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
