"""Any names and dates of documents give a schema that parsers take, and records that stock consumers read."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import bson
import fastavro
import jsonschema
import pytest
from bson import DatetimeMS, Int64
from hypothesis import given
from hypothesis import strategies as st

from odd_events import TOKEN
from schema_keeping import KeepingRegistry
from tailrace.capture.formats import FormatOptions
from tailrace.errors import SettingsError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999
KINDS = pytest.mark.parametrize("kind", ["avro", "jsonschema"])


def event(document: dict[str, Any]) -> bytes:
    about = {"_id": TOKEN, "operationType": "insert", "ns": {"db": "a", "coll": "b"}, "documentKey": {"_id": 1}}
    return bson.encode({**about, "fullDocument": document})


class Subject:
    """A topic whose records are read as stock consumers do: by the schema whose id they have."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.registry = KeepingRegistry()
        self.format = FormatOptions(kind, registry=self.registry).make()

    @property
    def schemas(self) -> list[Any]:
        (versions,) = self.registry.schemas.values()
        return [json.loads(each) for each in versions]

    def read(self, document: dict[str, Any], *, restarted: bool = False) -> Any:
        """Give the document as a consumer has it."""
        if restarted:
            self.format = FormatOptions(self.kind, registry=self.registry).make()
        value = self.format.records(event(document))[0].value or b""
        schema = self.schemas[int.from_bytes(value[1:5], "big") - 1]
        if self.kind == "jsonschema":
            jsonschema.Draft7Validator(schema).validate(json.loads(value[5:]))
            return json.loads(value[5:])["after"]
        stream = io.BytesIO(value[5:])
        read: Any = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema))
        assert not stream.read(), "bytes are left"
        return read["after"]


def records_of(form: Any) -> Iterator[dict[str, Any]]:
    """Every record that a schema defines."""
    if isinstance(form, list):
        for each in form:
            yield from records_of(each)
    elif isinstance(form, dict):
        if form.get("type") == "record":
            yield form
            for field in form["fields"]:
                yield from records_of(field["type"])
        elif form.get("type") == "array":
            yield from records_of(form["items"])


def assert_names(schema: Any) -> None:
    """Names are Avro's, and differ in more than capital letters: of records in the schema, of fields in a record."""
    records = list(records_of(schema))
    for names in ([each["name"] for each in records], *([each["name"] for each in one["fields"]] for one in records)):
        assert all(NAME.fullmatch(name) for name in names), names
        assert len({name.lower() for name in names}) == len(names), names


COLLIDING: list[dict[str, Any]] = [
    {"a_b": {"x": 1}, "a": {"b": {"y": 2}}},
    {"a": {"b": {"y": 2}}, "a_b": {"x": 1}},
    {"a": [{"x": 1}], "a_item": {"y": 2}},
    {"a": [[{"x": 1}]], "a_item": [{"y": 2}]},
    {"a b": {"x": 1}, "a_x20_b": {"y": 2}},
    {"A": {"x": 1}, "a": {"y": 2}},
    {"A": 1, "a": 2},
    {"": {"x": 1}, "_": {"y": 2}, "__": {"z": 3}},
    {"1": {"x": 1}, "_1": {"y": 2}},
    {"int": {"null": 1}, "record": {"string": {"array": [{"map": 1}]}}, "Document": {"Envelope": {"x": 1}}},
    {"é": {"x": 1}, "_xe9_": {"y": 2}, "\U0001f600": 3},
    {"a_": {"x": 1}, "a b": 1, "a": {"": {"y": 2}, "_b": {"z": 3}}, "a__b": {"z": 4}},
]


@pytest.mark.parametrize("document", COLLIDING)
@KINDS
def test_names_that_would_be_one_are_two(kind: str, document: dict[str, Any]) -> None:
    subject = Subject(kind)
    read = subject.read(document)
    if kind == "jsonschema":
        assert read == document
    else:
        assert_names(subject.schemas[-1])
        assert leaves(read) == leaves(document)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in leaves(each)]
    return [] if value is None else [value]


def test_names_stay_when_the_schema_grows_and_after_a_restart() -> None:
    subject = Subject("avro")
    subject.read({"a_b": {"x": 1}})
    subject.read({"a": {"b": {"y": 2}}}, restarted=True)
    subject.read({"A_B": {"z": 3}, "a_b": {"x": 2}}, restarted=True)
    subject.read({"more": {}}, restarted=True)
    for schema, expected in zip(
        subject.schemas,
        [
            ["Document_a_b"],
            ["Document_a_b", "Document_a", "Document_a_b_"],
            ["Document_a_b", "Document_a", "Document_a_b_", "Document_A_B__"],
            ["Document_a_b", "Document_a", "Document_a_b_", "Document_A_B__", "Document_more"],
        ],
        strict=True,
    ):
        assert [record["name"] for record in records_of(schema)][2:] == expected


def test_names_of_a_schema_from_before_are_kept() -> None:
    """Capital letters alone told names apart once; a consumer's classes have these names."""
    subject = Subject("avro")
    subject.read({"a": {"x": 1}, "b": {"x": 1}})
    (versions,) = subject.registry.schemas.values()
    text = versions[-1].replace('"Document_b"', '"Document_A"').replace('"name":"b"', '"name":"A"')
    versions.append(text)
    assert subject.read({"a": {"x": 1}, "A": {"x": 2}}, restarted=True) == {"a": {"x": 1}, "A": {"x": 2}}
    subject.read({"a": {"x": 1}, "new": 5})
    assert [each["name"] for each in records_of(subject.schemas[-1])][2:] == ["Document_a", "Document_A"]


NAMES = st.text(max_size=3) | st.sampled_from(["a", "A", "a_b", "b", "_", "", "a_item", "item", "1", "a b", "a_x20_b"])
NAMES = NAMES.filter(lambda name: "\0" not in name and not name.startswith("$"))
TREES = st.recursive(
    st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=9,
)


@given(st.lists(st.dictionaries(NAMES, TREES, max_size=4), min_size=1, max_size=3))
def test_any_names(documents: list[dict[str, Any]]) -> None:
    subject = Subject("avro")
    for document in documents:
        assert sorted(leaves(subject.read(document, restarted=True))) == sorted(leaves(document))
        assert_names(subject.schemas[-1])
    for before, after in zip(subject.schemas, subject.schemas[1:], strict=False):
        known = [record["name"] for record in records_of(after)]
        assert {record["name"] for record in records_of(before)} <= set(known)


DISTANT = [FIRST - 1, LAST + 1, -(2**63), 2**63 - 1, 2**60]


@pytest.mark.parametrize("milliseconds", DISTANT)
@pytest.mark.parametrize("beside", [[], [DatetimeMS(0)], [Int64(5)], [1, DatetimeMS(0)], ["text"]])
@KINDS
def test_dates_that_consumers_cannot_read_are_text(kind: str, milliseconds: int, beside: list[Any]) -> None:
    subject, date = Subject(kind), DatetimeMS(milliseconds)
    text = f'{{"$date":{{"$numberLong":"{milliseconds}"}}}}'
    for each in beside:
        subject.read({"v": each, "w": [each]})
    assert subject.read({"v": date, "w": [date, None]}) == {"v": text, "w": [text, None]}
    assert subject.read({"v": date, "w": [date, None]}, restarted=True) == {"v": text, "w": [text, None]}


@KINDS
def test_the_first_and_the_last_date_are_dates(kind: str) -> None:
    subject = Subject(kind)
    read = [subject.read({"v": DatetimeMS(each)})["v"] for each in (FIRST, LAST, 0)]
    if kind == "jsonschema":
        assert read == ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z", "1970-01-01T00:00:00Z"]
    else:
        moments = [(1, 1, 1), (9999, 12, 31, 23, 59, 59, 999_000), (1970, 1, 1)]
        assert read == [datetime(*each, tzinfo=UTC) for each in moments]  # type: ignore[arg-type]
    assert len(subject.schemas) == 1


@KINDS
def test_the_extremes_of_int64_are_numbers(kind: str) -> None:
    subject = Subject(kind)
    for number in (-(2**63), 2**63 - 1):
        assert subject.read({"v": Int64(number)}) == {"v": number}


FOREIGN = {
    "a type alone": '"string"',
    "no JSON": 'syntax = "proto3"; message Envelope {}',
    "another's record": '{"type":"record","name":"Envelope","fields":[]}',
    "ours of the other format": None,
    "ours without its parts": '{"type":"record","name":"Envelope","tailrace":1,"fields":[]}',
}


@pytest.mark.parametrize("label", FOREIGN)
@KINDS
def test_a_subject_with_another_schema_stops_the_stream(kind: str, label: str) -> None:
    """It is no fault of the documents, which would all have become dead letters."""
    text = FOREIGN[label]
    if text is None:
        other = Subject("jsonschema" if kind == "avro" else "avro")
        other.read({"a": 1})
        text = json.dumps(other.schemas[-1])
    subject = Subject(kind)
    subject.registry.schemas["a.b-value"] = [text]
    with pytest.raises(SettingsError, match=r"a\.b-value has a schema that tailrace has not made"):
        subject.format.records(event({"a": 1}))
