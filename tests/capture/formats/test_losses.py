"""What a format cannot carry is refused, or written with a header that says so; never changed without a word."""

from __future__ import annotations

import math
import struct
from typing import Any

import bson
import orjson
import pytest
from bson import Binary, Code, DatetimeMS, DBRef, Decimal128, MaxKey, Regex, Timestamp, json_util
from hypothesis import given
from hypothesis import strategies as st

from bson_strategies import DOCUMENTS, NAMES, VALUES
from schema_keeping import KeepingRegistry
from tailrace import raw
from tailrace.capture.formats import Format, decoder_of, make_format, snapshot_event
from tailrace.capture.formats.stored_records import KafkaRecord
from tailrace.errors import EventUnconvertible
from tailrace.raw import extended_json

TOKEN = bson.encode({"_data": "8265F0A1B2000000072B0229296E04"})
ONE, TWO = (raw.element(raw.INT32, b"v", raw.int32(number)) for number in (1, 2))
OTHER = raw.element(raw.INT32, b"w", raw.int32(2))
TWICE = ONE + TWO
POINTER = raw.element(raw.DB_POINTER, b"v", raw.string("a.b") + b"0123456789ab")
SYMBOL = raw.element(raw.SYMBOL, b"v", raw.string("s"))
UNDEFINED = raw.element(raw.UNDEFINED, b"v", b"")
LAST_SUBTYPE = raw.element(raw.BINARY, b"v", raw.binary(255, b"abc"))


def of(value: Any) -> bytes:
    return raw.body(bson.encode({"v": value}))


def event_with(*elements: bytes) -> bytes:
    identity = raw.element(raw.INT32, b"_id", raw.int32(5))
    return snapshot_event("shop.orders", raw.document(identity, *elements), TOKEN, Timestamp(0x65F0A1B2, 7))


def plain_event_with(*elements: bytes) -> bytes:
    """Give an insert laid out as servers do, which formats write by a faster way."""
    event = bson.decode(event_with(), bson.CodecOptions(document_class=bson.SON))
    head = {"_id": event["_id"], "operationType": "insert", "clusterTime": event["clusterTime"]}
    document = raw.document(raw.element(raw.INT32, b"_id", raw.int32(5)), *elements)
    tail = {"ns": event["ns"], "documentKey": event["documentKey"]}
    return raw.document(
        raw.body(bson.encode(head)), raw.element(raw.DOCUMENT, b"fullDocument", document), raw.body(bson.encode(tail))
    )


def made(name: str, *, keep: bool = False) -> Format:
    registry = KeepingRegistry() if name in ("avro", "jsonschema") else None
    return make_format(name, fields=["v"], keeps_unrepresentable=keep, registry=registry)


LOST: dict[str, tuple[bytes, ...]] = {
    "json": (TWICE, of({"$numberLong": "7"}), of([{"$oid": "0" * 24}]), of({"a": 1, "$date": 5}), POINTER, SYMBOL,
             UNDEFINED, of({"$regex": Binary(b"a")}), of({"$regex": Binary(b"\xe3" * 16, 4)}),
             of({"x": 1}) + raw.element(raw.DOCUMENT, b"u", raw.document(TWICE))),
    "canonical": (TWICE, of({"$numberLong": "7"}), POINTER, SYMBOL, UNDEFINED,
                  raw.element(raw.DOUBLE, b"v", struct.pack("<Q", 0x7FF8000000000001)),
                  raw.element(raw.DECIMAL128, b"v", b"\xff" * 14 + b"\x09\x6e")),
    "debezium": (TWICE, of({"$numberLong": "7"}), POINTER),
    "flat": (TWICE, of(math.nan), of([math.inf]), of(DatetimeMS(253402300800000)), of(DatetimeMS(-(2**62))),
             of({"a": {"b": math.nan}}), of(Regex("a")), of(MaxKey()), of(DBRef("a", 1)), of(Code("f", {"a": 1}))),
    "cloudevents": (TWICE, of({"$numberLong": "7"}), POINTER),
    "avro": (TWICE,),
    "jsonschema": (TWICE, of(math.nan), of([1.5, -math.inf]), of({"a": {"b": math.nan}})),
}  # fmt: skip
CARRIED: dict[str, tuple[bytes, ...]] = {
    "json": (LAST_SUBTYPE, of(math.nan), of({"$other": 1}), of("$numberLong"), of(DBRef("a", 1)), of(DatetimeMS(2**60)),
             ONE + OTHER),
    "canonical": (of(math.nan), of({"$other": 1}), of(Decimal128("1.50")), of(DBRef("a", 1)), ONE + OTHER),
    "debezium": (LAST_SUBTYPE, of(math.nan), SYMBOL, UNDEFINED, of({"$other": 1}), of(DatetimeMS(2**60))),
    "flat": (LAST_SUBTYPE, of(DatetimeMS(-1)), of(None), raw.element(raw.DOUBLE, b"w", raw.double(math.nan)),
             OTHER + OTHER),
    "cloudevents": (LAST_SUBTYPE, of(math.nan), of({"$other": 1}), ONE + OTHER),
    "avro": (of(math.nan), of(DatetimeMS(2**60)), of(Regex("a")), of(Code("f", {"a": 1})), of(MaxKey())),
    "jsonschema": (of(DatetimeMS(-1)), of(DatetimeMS(2**60)), of(DatetimeMS(-(2**63))),
                   of(Regex("a")), of(Code("f", {"a": 1})), of(MaxKey()), of(DBRef("a", 1))),
    "bson": (TWICE, POINTER, SYMBOL, UNDEFINED, of({"$numberLong": "7"}), of(math.nan)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "elements"), [(name, each) for name, all_ in LOST.items() for each in all_])
@pytest.mark.parametrize("shape", [event_with, plain_event_with])
def test_what_a_format_cannot_carry_is_refused_or_said(name: str, elements: bytes, shape: Any) -> None:
    event = shape(elements)
    with pytest.raises(EventUnconvertible, match="cannot carry"):
        made(name).batch([event])
    (record,) = made(name, keep=True).batch([event])
    assert dict(record.headers)["unrepresentable"]


@pytest.mark.parametrize(("name", "elements"), [(name, each) for name, all_ in CARRIED.items() for each in all_])
@pytest.mark.parametrize("shape", [event_with, plain_event_with])
def test_what_a_format_carries_has_no_such_header(name: str, elements: bytes, shape: Any) -> None:
    for record in made(name).batch([shape(elements)]):
        assert "unrepresentable" not in dict(record.headers)


def test_good_events_of_a_batch_are_written_beside_one_that_is_kept() -> None:
    events = [plain_event_with(ONE), plain_event_with(TWICE), plain_event_with(OTHER)]
    records = made("json", keep=True).batch(events)
    assert ["unrepresentable" in dict(record.headers) for record in records] == [False, True, False]


def test_flat_dates_before_1970_are_dates_too() -> None:
    (record,) = made("flat").records(event_with(of(DatetimeMS(-1))))
    assert orjson.loads(record.value or b"")["v"] == "1969-12-31T23:59:59.999Z"


ELEMENTS = st.one_of(
    st.tuples(NAMES, VALUES).map(lambda pair: raw.body(bson.encode(dict([pair])))),
    st.sampled_from([TWICE, ONE, POINTER, SYMBOL, UNDEFINED, *LOST["canonical"], *LOST["flat"]]),
    st.binary(min_size=8, max_size=8).map(lambda data: raw.element(raw.DOUBLE, b"d", data)),
    st.binary(min_size=16, max_size=16).map(lambda data: raw.element(raw.DECIMAL128, b"e", data)),
    st.binary(max_size=6).map(lambda data: raw.element(raw.BINARY, b"f", raw.binary(4, data))),
    st.sampled_from(["$oid", "$date", "$numberInt", "$ref", "$id", "$regex", "$minKey", "$uuid", "$code"]).flatmap(
        lambda name: VALUES.map(lambda value: of({name: value}))
    ),
)


@given(st.lists(ELEMENTS, max_size=4))
def test_canonical_is_turned_back_into_the_same_bytes_or_refused(elements: list[bytes]) -> None:
    event = event_with(*elements)
    try:
        (record,) = made("canonical").records(event)
    except EventUnconvertible:
        return
    read = decoder_of("canonical").event(KafkaRecord("t", 0, 0, record.value or b"", record.key))
    assert read is not None
    assert read.bytes == event


@given(st.lists(ELEMENTS, max_size=4))
def test_json_is_read_as_the_same_values_or_refused(elements: list[bytes]) -> None:
    """Whatever reads Extended JSON gets an equal document: only the types of numbers are not told apart."""
    event = event_with(*elements)
    try:
        (record,) = made("json").records(event)
    except EventUnconvertible:
        return
    options = json_util.JSONOptions(datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_MS)
    read = json_util.loads(record.value or b"", json_options=options)
    known = bson.decode(event, bson.CodecOptions(datetime_conversion=options.datetime_conversion))
    texts = [extended_json.canonical(each["fullDocument"]) for each in (read, known)]
    assert len({text.replace(b"$numberInt", b"$numberLong") for text in texts}) == 1


@pytest.mark.parametrize("name", ["bson", "canonical", "json"])
@given(document=DOCUMENTS)
def test_whole_events_come_back(name: str, document: dict[str, Any]) -> None:
    """One suite over the formats whose values are whole events; `json` loses the types of numbers alone."""
    event = event_with(raw.element(raw.DOCUMENT, b"d", bson.encode(document)))
    try:
        (record,) = made(name).records(event)
    except EventUnconvertible:
        assert name != "bson"
        return
    read = decoder_of(name).event(KafkaRecord("t", 0, 0, record.value or b"", record.key))
    assert read is not None
    if name == "json":
        assert made(name).records(read.bytes)[0].value == record.value
    else:
        assert read.bytes == event
