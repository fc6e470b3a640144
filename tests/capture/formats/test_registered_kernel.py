"""Avro and JSON Schema by the kernel: under a schema with a place for everything, its records are the reference's."""

from __future__ import annotations

import io
import json
import os
import random
from typing import Any

import bson
import fastavro
import pytest
from bson import Binary, Code, DatetimeMS, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from odd_events import TOKEN, change_events, mutated
from schema_keeping import KeepingRegistry
from tailrace.capture.formats import FormatOptions
from tailrace.capture.formats.make import CompiledFormat
from tailrace.errors import TailraceError

INPUTS = int(os.environ.get("INPUTS", "24000"))
SEED = int(os.environ.get("SEED", "1"))
pytestmark = [pytest.mark.usefixtures("only_once"), pytest.mark.parametrize("kind", ["avro", "jsonschema"])]
VARIANTS: list[dict[str, Any]] = [
    {"tombstones": True},
    {"key_field": "a.b", "looks_up": True},
    {"key_field": "_id", "keeps_unrepresentable": True},
]


@pytest.fixture(scope="module")
def only_once(implementation: str) -> None:
    if implementation == "python":
        pytest.skip("both are compared in one run")


def made(kind: str, **options: Any) -> CompiledFormat:
    found = FormatOptions(kind, registry=KeepingRegistry(), **options).make()
    assert isinstance(found, CompiledFormat)
    return found


def outcome(format: Any, event: bytes) -> Any:
    try:
        return [(*record, type(record)) for record in format.records(event)]
    except TailraceError as error:
        return type(error), str(error)


def assert_alike(format: CompiledFormat, event: bytes) -> None:
    """The reference goes first, so that the schema has a place for the event when the kernel sees it."""
    expected = outcome(format._reference, event)
    assert outcome(format, event) == expected


def declined(format: CompiledFormat, *events: bytes) -> int:
    return int(format._compiled.batch(list(events), False, 0).declined)


def event_of(document: Any, **parts: Any) -> bytes:
    about = {"_id": TOKEN, "operationType": "insert", "ns": {"db": "a", "coll": "b"}, "documentKey": {"_id": 1}}
    return bson.encode({**about, "fullDocument": document, **parts})


@given(st.lists(change_events(), max_size=4))
def test_any_events(kind: str, events: list[bytes]) -> None:
    for variant in VARIANTS:
        format = made(kind, **variant)
        for event in events:
            assert_alike(format, event)
        for event in events:  # under the schema that all of them have made
            assert_alike(format, event)


def test_recorded_events(recorded: list[bytes], kind: str) -> None:
    format = made(kind, tombstones=True)
    for event in recorded[:1500]:
        assert_alike(format, event)


def test_mutated_bytes(recorded: list[bytes], kind: str) -> None:
    chance = random.Random(SEED)
    format = made(kind, tombstones=True)
    for event in recorded[:300]:
        outcome(format, event)
    for _ in range(INPUTS // 16):
        assert_alike(format, mutated(chance, chance.choice(recorded[:300])))


def test_what_servers_send_every_day_is_not_declined(events: dict[str, bytes], kind: str) -> None:
    for variant in VARIANTS:
        format = made(kind, **variant)
        for event in events.values():
            assert_alike(format, event)
        assert declined(format, *events.values()) == 0


def test_a_cluster_time_with_the_highest_bit(kind: str) -> None:
    """Seconds from January 2038 on: Avro's long is signed, and a reader gets the same 64 bits."""
    format, event = made(kind), event_of({"_id": 1}, _id={"_data": "828AFA05110000001C2B0229296E04"})
    for _ in range(2):
        assert_alike(format, event)
    assert declined(format, event) == 0
    (record,) = format.records(event)
    if kind == "avro":
        schema = fastavro.parse_schema(format._reference._schema("a.b", format._reference.schema_of("a.b")))
        read = fastavro.schemaless_reader(io.BytesIO((record.value or b"")[5:]), schema)
    else:
        read = json.loads((record.value or b"")[5:])
    assert read["clusterTime"] % 2**64 == 0x8AFA0511_0000001C


VALUES: list[Any] = [
    None, True, False, 0, -1, 2**31 - 1, Int64(2**62), Int64(-(2**63)), 0.0, -0.0, 1e300, float("inf"), "", "é", "a\0b",
    b"", b"plain", Binary(b"x", 5), Binary(b"old", 2), DatetimeMS(-1), DatetimeMS(2**60), DatetimeMS(-(2**63)),
    ObjectId(b"a" * 12), Decimal128("12.50"), Regex("a", "i"), Code("f()"), Code("f()", {"x": 1}), Timestamp(5, 6),
    MaxKey(), [], {}, [None, [], {}, [1, "two", {"k": True}]], {"n": {"é-1": [{"deep": Int64(1)}]}},
]  # fmt: skip

LOST_AS_JSON = {str(float("inf"))}


def test_every_type_beside_every_other(kind: str) -> None:
    """Longs and dates share a branch with neither: the one that comes second is a string."""
    for first in VALUES:
        for second in VALUES:
            format = made(kind)
            events = [event_of({"_id": 1, "v": first}), event_of({"v": second, "w": [first, second], "_id": 2})]
            for event in [*events, *events]:
                assert_alike(format, event)
            if kind == "avro" or not {str(first), str(second)} & LOST_AS_JSON:
                assert declined(format, *events) == 0, (first, second)


@pytest.mark.parametrize(
    "document",
    [{"_id": 1, "v": float("nan")}, {"_id": 1, "v": {"$ref": "a", "$id": 1}}, {"_id": 1, "v": Decimal128("NaN")}],
)
def test_what_is_rare_is_left_to_the_reference(document: dict[str, Any], kind: str) -> None:
    format = made(kind)
    assert_alike(format, event_of(document))
    assert declined(format, event_of(document)) == 1


def test_a_field_that_is_there_twice_is_left_to_the_reference(kind: str) -> None:
    format = made(kind, keeps_unrepresentable=True)
    twice = bson.encode({"_id": 1, "a": 1, "b": 2}).replace(b"\x10b\0", b"\x10a\0")
    outcome(format, event_of({"_id": 1, "a": 1}))
    for event in (
        event_of(bson.raw_bson.RawBSONDocument(twice)),
        event_of({"_id": 1}, x=1, y=2).replace(b"y\0", b"x\0"),
    ):
        assert_alike(format, event)
        assert declined(format, event) == 1
        assert "unrepresentable" in dict(format.records(event)[0].headers)


def test_a_new_field_within_a_batch_makes_a_new_schema_and_the_order_stays(kind: str) -> None:
    format = made(kind)
    format.records(event_of({"_id": 1}))
    batch = [event_of({"_id": 2}), event_of({"_id": 3, "new": 1}), event_of({"_id": 4})]
    ids = [record.value[:5] for record in format.batch(batch) if record.value]
    assert ids == [b"\0\0\0\0\1", b"\0\0\0\0\2", b"\0\0\0\0\1"]
    assert declined(format, *batch) == 0
    assert [record.value[4] for record in format.batch(batch) if record.value] == [2, 2, 2]


def test_another_collection_has_its_own_schema(kind: str) -> None:
    format = made(kind)
    ours, theirs = event_of({"_id": 1, "n": 1}), event_of({"_id": 1, "n": "text"}, ns={"db": "a", "coll": "c"})
    for event in (ours, theirs, ours, theirs):
        assert_alike(format, event)
    assert declined(format, ours, theirs) == 0
