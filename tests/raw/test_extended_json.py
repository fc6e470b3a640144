"""Our Extended JSON against that of `bson.json_util`, for every type and for the traps."""

from __future__ import annotations

import json
import math
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.json_util import JSONMode, JSONOptions
from hypothesis import assume, given
from hypothesis import strategies as st

from bson_strategies import DOCUMENTS, VALUES
from tailrace.errors import EventUnconvertible
from tailrace.raw import extended_json

NUMBERS = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
EXTREMES = st.sampled_from(
    [
        math.nan,
        math.inf,
        -math.inf,
        -0.0,
        1e300,
        5e-324,
        DatetimeMS(-1),
        DatetimeMS(253402300799999),
        DatetimeMS(253402300800000),
        DatetimeMS(1_700_000_000_001),
        DatetimeMS(-(2**62)),
        Decimal128("NaN"),
        Decimal128("-Infinity"),
        DBRef("other", ObjectId(b"123456789012"), "db", extra=Code("x")),
        Code("f", {"nested": {"nan": math.nan, "id": ObjectId(b"123456789012")}}),
        Regex("p", "imxs"),
        Binary(b"", 0),
        Int64(2**63 - 1),
        2**31,
        -(2**31),
        "null",
        None,
        "\u2028 \x00 \x7f \U0001f600",
    ]
)
TRICKY = st.recursive(
    EXTREMES | VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner)
)


def oracle(event: bytes, options: JSONOptions) -> str:
    return json_util.dumps(bson.decode(event, NUMBERS), json_options=options)


def same(ours: bytes | str, theirs: str) -> bool:
    """Equal as JSON, order of fields and the difference between 1, 1.0 and -0.0 included.

    Where `json_util` writes NaN, which is no JSON, ours says `{"$numberDouble": "NaN"}`.
    """
    hooks: dict[str, Any] = {
        "object_pairs_hook": list,
        "parse_float": lambda text: ("float", repr(float(text))),
        "parse_constant": lambda text: [("$numberDouble", text)],
    }
    return bool(json.loads(ours, **hooks) == json.loads(theirs, **hooks))


@given(st.dictionaries(st.text("abc", max_size=3), TRICKY, max_size=4) | DOCUMENTS)
def test_every_spelling_is_that_of_json_util(document: dict[str, Any]) -> None:
    event = bson.encode(document)
    decoded = extended_json.decode(event)
    assert same(extended_json.relaxed(decoded, event), oracle(event, json_util.RELAXED_JSON_OPTIONS))
    assert same(extended_json.canonical(decoded), oracle(event, json_util.CANONICAL_JSON_OPTIONS))


@given(DOCUMENTS)
def test_canonical_can_be_turned_back_into_the_same_bytes(document: dict[str, Any]) -> None:
    event = bson.encode(document)
    assume(b"$" not in event)  # a field that is called $minKey cannot be told from a MinKey in Extended JSON
    text = extended_json.canonical(extended_json.decode(event))
    options = JSONOptions(json_mode=JSONMode.CANONICAL, datetime_conversion=DatetimeConversion.DATETIME_MS)
    assert bson.encode(json_util.loads(text, json_options=options)) == event


@pytest.mark.parametrize(
    ("value", "relaxed", "canonical"),
    [
        (5, "5", '{"$numberInt":"5"}'),
        (Int64(5), "5", '{"$numberLong":"5"}'),
        (1.5, "1.5", '{"$numberDouble":"1.5"}'),
        (math.nan, *['{"$numberDouble":"NaN"}'] * 2),
        (DatetimeMS(1500), '{"$date":"1970-01-01T00:00:01.500Z"}', '{"$date":{"$numberLong":"1500"}}'),
        (b"a", *['{"$binary":{"base64":"YQ==","subType":"00"}}'] * 2),
        (Code("f"), *['{"$code":"f"}'] * 2),
        (ObjectId(b"123456789012"), *['{"$oid":"313233343536373839303132"}'] * 2),
        (Timestamp(1, 2), *['{"$timestamp":{"t":1,"i":2}}'] * 2),
        (Decimal128("1.50"), *['{"$numberDecimal":"1.50"}'] * 2),
        (MinKey(), *['{"$minKey":1}'] * 2),
        (MaxKey(), *['{"$maxKey":1}'] * 2),
        (Regex("a", "i"), *['{"$regularExpression":{"pattern":"a","options":"i"}}'] * 2),
    ],
    ids=str,
)
def test_the_spelling_of_each_type(value: Any, relaxed: str, canonical: str) -> None:
    event = bson.encode({"v": value})
    decoded = extended_json.decode(event)
    assert extended_json.relaxed(decoded, event).decode() == f'{{"v":{relaxed}}}'
    assert extended_json.canonical(decoded).decode() == f'{{"v":{canonical}}}'


def test_code_in_an_event_without_its_type_byte_elsewhere_is_not_taken_for_a_string() -> None:
    event = bson.encode({"a": Code("f"), "b": Int64(7)})
    assert json.loads(extended_json.relaxed(extended_json.decode(event), event)) == {"a": {"$code": "f"}, "b": 7}


def test_documents_nested_deeper_than_orjson_goes_are_written_too() -> None:
    document: dict[str, Any] = {"end": ObjectId(b"123456789012")}
    for _ in range(300):
        document = {"a": document}
    event = bson.encode(document)
    decoded = extended_json.decode(event)
    assert same(extended_json.relaxed(decoded, event), oracle(event, json_util.RELAXED_JSON_OPTIONS))
    assert same(extended_json.canonical(decoded), oracle(event, json_util.CANONICAL_JSON_OPTIONS))


def test_bytes_that_cannot_be_decoded_are_an_error_of_ours() -> None:
    event = bson.encode({"a": "text"}).replace(b"text", b"\xff\xfe\xfd\xfc")
    with pytest.raises(EventUnconvertible):
        extended_json.decode(event)
    with pytest.raises(EventUnconvertible):
        extended_json.decode(b"\x05\x00\x00\x00")
