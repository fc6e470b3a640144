"""Chosen columns and excluded fields: what goes where, for values of every BSON type."""

from __future__ import annotations

from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Int64, ObjectId
from hypothesis import given

from bson_strategies import DOCUMENTS
from tailrace.errors import SettingsError
from tailrace.raw import extended_json
from tailrace.settings import Settings, WarehouseSettings
from tailrace.warehouse.columns.choice import WHOLE, Choice
from tailrace.warehouse.columns.contract import Rules
from tailrace.warehouse.columns.encoding import Encoder
from tailrace.warehouse.columns.shapes import KINDS
from tailrace.warehouse.mirror.staging import JSON_COLUMNS, RECODED, Plan, encoding


def chosen(document: dict[str, Any], **columns: str) -> Any:
    choice, shapes = Choice.parse(columns, "")
    return choice.encode(document, Encoder({"_id": "int", **shapes}))


def test_chosen_columns_take_values_at_their_paths_and_the_rest_has_what_is_left():
    document = {"_id": 1, "user": {"name": "Ann", "age": 5, "x": None}, "tags": ["a", 1], "n": "text", "other": [1]}
    made = chosen(document, name="user.name string", age="user.age long", tags="string[]", n="int", none="a.b.c date")
    assert made.values == {"_id": 1, "name": "Ann", "age": 5, "tags": ["a", None]}
    assert made.rest == {"tags": ["a", 1], "n": "text", "other": [1]}
    assert made.drift == {"tags": ["int"], "n": "string"}, "fields that nobody chose are no drift"


def test_excluded_fields_are_taken_out_of_the_bytes_in_arrays_too():
    choice = Choice.parse({}, "card, user.phone,items.secret")[0]
    kept = {"_id": ObjectId(), "user": {"name": "Ann"}, "items": [{"n": Int64(1)}, 7, {}], "phone": 1}
    document = {**kept, "card": {"x": 1}, "user": {"name": "Ann", "phone": [1]}}
    document["items"] = [{"n": Int64(1), "secret": 1}, 7, {"secret": {}}]
    assert bson.decode(choice.without_excluded(bson.encode(document))) == kept
    assert choice.without_excluded(bson.encode(kept)) == bson.encode(kept)
    assert choice.without_excluded(b"no BSON") == b"no BSON"
    assert WHOLE.without_excluded(bson.encode(document)) == bson.encode(document)


def test_rows_have_neither_excluded_fields_nor_columns_that_nobody_chose():
    """Under `strict` a document that does not fit is a dead letter, without the excluded fields too."""
    choice, shapes = Choice.parse({"name": "user.name string", "total": "long"}, "card, user.phone")
    fits = {"_id": 1, "user": {"name": "Ann", "phone": "1"}, "total": 5, "card": "4"}
    drifted = {"_id": 2, "card": "4", "total": "n/a"}
    columns = {"_id": "int", **shapes}
    first, second, _ = staged(Plan(columns, choice=choice), fits, drifted)
    assert (first["name"], first["total"], first["_rest"]) == ("Ann", 5, None)
    assert bson.decode(first["_bson"]) == {"_id": 1, "user": {"name": "Ann"}, "total": 5}
    assert (second["total"], second["_rest"]) == (None, '{"total":"n/a"}')
    letter, refused, _ = staged(Plan(columns, refuses=True, choice=choice), drifted)
    assert (letter["_row"], letter["_rest"]) == ("letter", "schema-drift: total (string)")
    assert bson.decode(letter["_bson"]) == {"_id": 2, "total": "n/a"}
    assert refused["_refused"] == "82"
    whole, _ = staged(Plan(JSON_COLUMNS, as_json=True, choice=choice), fits)
    assert whole["document"] == '{"_id":1,"user":{"name":"Ann"},"total":5}'


def staged(plan: Plan, *documents: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that a task makes of documents, the report last."""
    kinds = [pa.binary(), pa.int64(), pa.string(), pa.bool_(), pa.string(), pa.binary(), pa.string()]
    rows = [(b"k", 1, "82", False, None, bson.encode(document), None) for document in documents]
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(RECODED))
    return [row for made in encoding(plan)([batch]) for row in made.to_pylist()]


@given(DOCUMENTS)
def test_chosen_columns_and_the_rest_together_hold_every_value(generated):
    """Of every kind of column, for every type of value: it is in its column, or it is in the rest."""
    document = extended_json.decode(bson.encode(generated))
    for kind in KINDS:
        names = {f"c{number}": name for number, name in enumerate(document) if "." not in name and name}
        made = chosen(document, **{column: f"{name} {kind}" for column, name in names.items() if " " not in name})
        for column, name in names.items():
            if document[name] is not None and column not in made.values and name != "_id":
                assert (made.rest or {})[name] == document[name]
        for name in document.keys() - set(names.values()) - {"_id"}:
            assert document[name] is None or (made.rest or {})[name] == document[name]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"columns": {"d.c": {"a": "varchar"}}}, "no kind 'varchar'"),
        ({"columns": {"d.c": {"a": "b..c int"}}}, "no path"),
        ({"columns": {"d.c": {"_rest": "int"}}}, "cannot be called _rest"),
        ({"columns": {"d.c": {"A": "int", "a": "int"}}}, "cannot be called A, a"),
        ({"columns": {"d.c": {"a": "int"}}, "contract": "json"}, "exclude each other"),
        ({"columns": {"d.c": {"a": "int"}}, "contracts": {"d.c": "variant"}}, "exclude each other"),
        ({"columns": {"d.c": {"a": "int"}}, "declared": {"d.c": "a int"}}, "in warehouse.declared"),
        ({"columns": {"d.c": {"a": "int", "b": "int"}}, "max_columns": 1}, "2 chosen columns"),
        ({"excluded": {"d.c": "a..b"}}, "no path"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_a_hint(settings, words):
    with pytest.raises(SettingsError, match=words) as refused:
        Rules.of(WarehouseSettings(**settings), "d.c")
    assert refused.value.hint


@pytest.mark.parametrize("where", ["contract", "contracts"])
def test_variants_need_a_format_that_has_them(where):
    value: Any = "variant" if where == "contract" else {"d.c": "variant"}
    flags = {f"warehouse.{where}": value, "warehouse.format_version": 2}
    with pytest.raises(SettingsError, match="format_version 3, or format delta"):
        Settings.load(None, flags)
    assert getattr(Settings.load(None, {f"warehouse.{where}": value}).warehouse, where) == value
