"""What a document contributes to the features of its entity."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final

import bson
import orjson
from bson import json_util
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.errors import EventUnconvertible
from tailrace.features.conditions import fields_of, holds
from tailrace.features.definition import Definition, Feature, Kind, Source
from tailrace.features.windows import BEGINNING
from tailrace.fold import apply_update, id_of_value
from tailrace.raw import extended_json
from tailrace.raw.decimals import to_decimal

BUCKETS: Final = 4096
"""Of approximate counting: an entity never has more entries than these, and counts up to 10,000 are good to 2 %."""
ACCURACY: Final = 0.01
"""How far a percentile may be from the value of its rank."""
GAMMA: Final = (1 + ACCURACY) / (1 - ACCURACY)
ZERO_BELOW: Final = 1e-9
"""Percentiles take numbers that are nearer to zero for zero."""
BUCKET_OF_ONE: Final = 1_100
"""Buckets of percentiles are powers of GAMMA, and this is the one of 1: that of ZERO_BELOW is still above 0."""
_SQUARES_BELOW: Final = 1e150
"""Numbers beyond have squares, or sums of them, that are none: stddev and percentile leave them out."""
_BEGINS_JSON: Final = frozenset('-0123456789"[{tfn')
_MOST_DIGITS: Final = Decimal(10) ** 34
_SECONDS_BELOW: Final = 10**11
FieldValues = dict[str, Any]
"""The fields of a document that a definition uses, by path; those that are not there are left out."""


def values_of(paths: Sequence[str], document: bytes) -> FieldValues:
    """Take the fields that are looked at out of a BSON document; nothing else is decoded.

    A field that cannot be kept as Extended JSON, such as a text that is no UTF-8, is left out like one that is not
    there: servers do store those.
    """
    found = []
    for path in paths:
        name = path.encode()
        span = raw.find_path(document, *name.split(b"."))
        if span is not None:
            found.append(raw.element(span[0], name, document[span[1] : span[2]]))
    return _decoded(raw.document(*found))


def _decoded(document: bytes) -> FieldValues:
    """Decode the fields that can be kept."""
    try:
        return _keepable(document)
    except EventUnconvertible:
        kept: FieldValues = {}
        for kind, name, start, end in raw.elements(document):
            with suppress(EventUnconvertible):
                kept |= _keepable(raw.document(raw.element(kind, name, document[start:end])))
        return kept


def _keepable(document: bytes) -> FieldValues:
    values = extended_json.decode(document)
    if raw.DECIMAL128 in document:
        extended_json.canonical(values)  # not every decimal has a text
    return values


def updated(values: FieldValues, update: bytes, paths: Sequence[str]) -> FieldValues | None:
    """Give the values after an update, by its description; None when that does not tell it.

    A part of a field changes the field as a whole is known; a part of one that is not there is not known.
    """
    description = _decoded_update(update)
    changed, removed = description.get("updatedFields", {}), description.get("removedFields", ())
    truncated = [item["field"] for item in description.get("truncatedArrays") or ()]
    result = dict(values)
    for path in paths:
        if any(_is_inside(name, path) or name == path for name in truncated) or any(
            _is_inside(name, path) for name in (*changed, *removed)
        ):
            if path not in values or "." in path:
                return None
            _apply_inside(result, path, description)
            continue
        for name in removed:
            if name == path or _is_inside(path, name):
                result.pop(path, None)
        for name, value in changed.items():
            if name == path or _is_inside(path, name):
                _put(result, path, value, path[len(name) + 1 :])
    return result


def _decoded_update(update: bytes) -> FieldValues:
    """Decode what an update says; a field that cannot be kept counts as removed, as `values_of` leaves it out."""
    try:
        return _keepable(update)
    except EventUnconvertible:
        description = _decoded(raw.without(update, b"updatedFields", b"removedFields"))
    fields = raw.field(update, b"updatedFields")
    changed = raw.EMPTY if fields is None else fields.data
    description["updatedFields"] = _decoded(changed)
    removed = raw.field(update, b"removedFields")
    names = [] if removed is None else [removed.data[start:end] for _, _, start, end in raw.elements(removed.data)]
    readable = [_text(raw.string_at(each)) for each in names] + [_text(name) for _, name, _, _ in raw.elements(changed)]
    description["removedFields"] = [name for name in readable if name not in (None, *description["updatedFields"])]
    return description


def _text(name: bytes) -> str | None:
    """Give a name as text; one that is no UTF-8 is nobody's."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def _apply_inside(values: FieldValues, path: str, description: Mapping[str, Any]) -> None:
    """Change a top-level field that is known as a whole."""
    field = {path: copy.deepcopy(values[path])}
    mine = {
        **description,
        "updatedFields": {k: v for k, v in description.get("updatedFields", {}).items() if k.split(".")[0] == path},
        "removedFields": [name for name in description.get("removedFields", ()) if name.split(".")[0] == path],
        "truncatedArrays": [
            cut for cut in description.get("truncatedArrays") or () if cut["field"].split(".")[0] == path
        ],
    }
    apply_update(field, mine)
    values.pop(path)
    values.update(field)


def _is_inside(path: str, outer: str) -> bool:
    return path.startswith(f"{outer}.")


def _put(values: FieldValues, path: str, value: Any, rest: str) -> None:
    for name in rest.split(".") if rest else ():
        if not isinstance(value, Mapping) or name not in value:
            values.pop(path, None)
            return
        value = value[name]
    values[path] = value


def to_text(values: FieldValues) -> str:
    """Give the form in which Redis keeps the values."""
    return extended_json.canonical(values).decode()


def from_text(text: str) -> FieldValues:
    """Read what `to_text` gave."""
    options = json_util.JSONOptions(datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_MS)
    found: FieldValues = json_util.loads(text, json_options=options)
    return found


def document_id(namespace: str, key: str) -> str:
    """Give what a document is called: of its key alone, or, in other collections than the first, behind all of those.

    Rows of one time are in the order of these names, and keys are hexadecimal.
    """
    return f"~{namespace}/{key}" if namespace else key


def entity_of(source: Source, values: FieldValues) -> str | None:
    """Give the entity as text; a document without one, or without a part of it, belongs to nobody."""
    parts = [values.get(field) for field in source.entity_fields]
    if any(part is None for part in parts):
        return None
    return text_of(parts[0]) if isinstance(source.entity, str) else entity_text(parts)


def entity_text(values: Sequence[Any]) -> str:
    """Give an entity of several values as text: a JSON array, in which texts are in quotes and numbers are not."""
    parts = (orjson.dumps(str(value)).decode() if isinstance(value, str) else text_of(value) for value in values)
    return f"[{','.join(parts)}]"


def text_of(value: Any) -> str:
    """Give a value as the text that people would write for it, equal for values that are equal to MongoDB.

    Numbers are equal whatever their type, and no number is equal to a text: one that could be taken for something else
    is in quotes. An ObjectId is its digits.
    """
    if isinstance(value, str):
        return _plain(str(value))
    if isinstance(value, ObjectId):
        return value.binary.hex()
    if isinstance(value, float | Decimal128):
        return _number_text(value)
    return extended_json.relaxed_of(value).decode()


def _plain(text: str) -> str:
    if not text:
        return '""'  # nothing is what Redis keeps for a document that belongs to nobody
    if text[:1] not in _BEGINS_JSON:
        return text
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return orjson.dumps(text).decode()


def _number_text(value: float | Decimal128) -> str:
    exact = to_decimal(value) if isinstance(value, Decimal128) else Decimal(value)
    if exact.is_finite():
        if exact == exact.to_integral_value() and abs(exact) < _MOST_DIGITS:
            return str(int(exact))
        if Decimal(float(exact)) == exact:
            return repr(float(exact))
    return extended_json.relaxed_of(value).decode()


def time_of(value: Any) -> int | None:
    """Give a time in milliseconds: a date, a timestamp, an ObjectId, ISO 8601, or a number since 1970.

    Seconds and milliseconds are told apart by their size: 10^11 is March 1973 in one and the year 5138 in the other.
    """
    if isinstance(value, DatetimeMS):
        return int(value)
    if isinstance(value, Timestamp):
        return value.time * 1000
    if isinstance(value, ObjectId):
        return round(value.generation_time.timestamp() * 1000)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    number = number_of(value)
    if number is None or abs(number) > -BEGINNING:
        return None
    return round(number * 1000 if abs(number) < _SECONDS_BELOW else number)


def row_of(definition: Definition, source: Source, values: FieldValues, version: str) -> str:
    """Give the row that `keep.lua` works with."""
    time = time_of(values.get(source.time))
    fulfilled = _Conditions(source, values)
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    newest: dict[str, str] = {}
    for feature in definition.features:
        value = values.get(feature.of) if feature.of else None
        if feature.of is None or value is None or not fulfilled.by(feature.namespace, feature.where):
            continue
        if feature.kind is Kind.LAST:
            newest[feature.of] = extended_json.relaxed_of(value).decode()
        elif feature.kind is Kind.DISTINCT:
            text = text_of(value)
            texts[feature.source] = _bucket(text) if feature.approximate else text
        else:
            number = number_of(value)
            if number is not None:
                _add_number(feature, number, numbers, texts)
    at = BEGINNING if time is None else time
    conditions = [name for name, condition in definition.conditions.items() if fulfilled.by(*condition)]
    row = {"v": version, "t": at, "n": numbers, "s": texts, "l": newest, **({"c": conditions} if conditions else {})}
    return orjson.dumps(row).decode()


class _Conditions:
    """Which conditions a document fulfils, each evaluated once."""

    def __init__(self, source: Source, values: FieldValues) -> None:
        self._source = source
        self._values = values
        self._known: dict[str, bool] = {"": True}

    def by(self, namespace: str, where: str) -> bool:
        if namespace not in ("", self._source.namespace):
            return False
        if where not in self._known:
            names = fields_of(where)
            self._known[where] = holds(where, {name: self._values[name] for name in names if name in self._values})
        return self._known[where]


def _add_number(feature: Feature, number: float, numbers: dict[str, float], texts: dict[str, str]) -> None:
    if feature.kind in (Kind.PERCENTILE, Kind.STDDEV) and abs(number) > _SQUARES_BELOW:
        return
    if feature.kind is Kind.PERCENTILE:
        texts[feature.source] = str(percentile_bucket(number))
    else:
        numbers[feature.source] = number


def percentile_bucket(number: float) -> int:
    """Give the bucket of a number: buckets are in the order of their numbers, negative ones below 0."""
    size = abs(number)
    if size < ZERO_BELOW:
        return 0
    bucket = math.ceil(math.log(size) / math.log(GAMMA)) + BUCKET_OF_ONE
    return bucket if number > 0 else -bucket


def bucket_value(bucket: int) -> float:
    """Give the number that stands for all of a bucket: none of them is further from it than ACCURACY."""
    if bucket == 0:
        return 0.0
    size = 2 * math.pow(GAMMA, abs(bucket) - BUCKET_OF_ONE) / (GAMMA + 1)
    return size if bucket > 0 else -size


def _bucket(text: str) -> str:
    """Give where approximate counting puts a text; a checksum would put similar texts unevenly."""
    return str(int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little") % BUCKETS)


def number_of(value: Any) -> float | None:
    """Give a number as MongoDB's $sum would take it; None for everything that is none."""
    if isinstance(value, Decimal128):
        value = float(to_decimal(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def id_text(key: bytes) -> str:
    """Give the `_id` as text that is equal for equal `_id`s and sorts like them, as members of equal score do."""
    id_ = raw.field(key, b"_id")
    return id_of_value(id_ if id_ is not None else raw.Value(raw.DOCUMENT, key)).hex()
