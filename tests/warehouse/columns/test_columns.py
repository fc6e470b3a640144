"""Documents into columns: what fits, what widens a column, and what stays in the rest."""

from __future__ import annotations

import uuid
from decimal import Decimal

import bson
import pytest
from bson import Binary, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given

from bson_strategies import DOCUMENTS
from tailrace.errors import SettingsError
from tailrace.raw import extended_json
from tailrace.warehouse.columns.encoding import Encoder
from tailrace.warehouse.columns.evolution import Limits, evolve
from tailrace.warehouse.columns.shapes import leaves, merged, parse_columns, shape_of, shape_text

UUID = uuid.UUID(int=5)


def columns_of(*documents, limit: int = 100):
    return evolve({}, [shape_of(document) for document in documents], Limits(limit)).columns


def test_each_kind_has_its_column():
    document = {
        "_id": ObjectId("0" * 24),
        "b": True,
        "i": 5,
        "l": Int64(5),
        "d": 1.5,
        "n": Decimal128("12.50"),
        "s": "x",
        "t": DatetimeMS(1_000),
        "u": Binary.from_uuid(UUID),
        "y": b"\0",
        "o": {"x": 1, "deep": {"y": "z"}},
        "a": [1, None, 2],
    }
    columns = columns_of(document)
    kinds = ["objectId", "bool", "int", "long", "double", "decimal", "string", "date", "uuid", "binary"]
    assert list(columns.values()) == [*kinds, {"x": "int", "deep": {"y": "string"}}, ["int"]]
    encoded = Encoder(columns).encode(document)
    assert (encoded.rest, encoded.drift) == (None, None)
    assert list(encoded.values.values()) == [
        "0" * 24, True, 5, 5, 1.5, Decimal("12.50"), "x", 1_000_000, str(UUID), b"\0",
        {"x": 1, "deep": {"y": "z"}}, [1, None, 2],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [
        ("int", "long", "long"), ("long", "int", "long"), ("int", "double", "double"), ("long", "double", "double"),
        ("int", "decimal", "decimal"), ("long", "decimal", "decimal"), ("double", "decimal", "double"),
        ("decimal", "double", "decimal"), ("int", "string", "int"), ("string", "int", "string"),
        ("objectId", "string", "objectId"), ("regex", "int", "int"), (None, "int", "int"),
        (["int"], ["long"], ["long"]), (["int"], "int", ["int"]),
        ({"a": "int"}, {"b": "int"}, {"a": "int", "b": "int"}),
    ],
)  # fmt: skip
def test_the_lattice(left, right, both):
    assert merged(left, right) == both


def test_columns_widen_in_place_where_the_format_can():
    in_place = {("int", "long")}
    found = [{"a": "long"}, {"o": {"x": "double", "y": "date"}}]
    grown = evolve({"a": "int", "o": {"x": "int"}}, found, Limits(10, in_place=in_place))
    assert grown.columns == {"a": "long", "o": {"x": "double", "y": "date"}}
    assert [(change.field, change.was, change.shape, change.needs_rewrite(in_place)) for change in grown.changes] == [
        ("a", "int", "long", False),
        ("o.x", "int", "double", True),
        ("o.y", None, "date", False),
    ]
    assert grown.needs_rewrite
    assert not evolve({"a": "int"}, [{"a": "long"}], Limits(10, in_place=in_place)).needs_rewrite
    assert evolve({"a": "int"}, [{"a": "long"}], Limits(10)).needs_rewrite
    kept = evolve({"a": "int"}, [{"a": "double"}], Limits(10, may_rewrite=False))
    assert (kept.columns, kept.changes) == ({"a": "int"}, ())


def test_what_fits_nowhere_is_in_the_rest_with_its_place():
    encoder = Encoder({"a": "int", "o": {"x": "int"}, "list": ["int"], "items": [{"n": "int"}]})
    document = {
        "a": "text",
        "o": {"x": 1, "y": Regex("r")},
        "list": [1, "two"],
        "items": [{"n": 1, "m": 2}, 7],
        "new": MaxKey(),
        "null": None,
    }
    encoded = encoder.encode(document)
    assert encoded.values == {"o": {"x": 1}, "list": [1, None], "items": [{"n": 1}, None]}
    assert encoded.rest == {name: document[name] for name in ("a", "list", "items", "new")} | {"o": {"y": Regex("r")}}
    assert encoded.drift == {
        "a": "string", "o": {"y": "regex"}, "list": ["string"], "items": [{"m": "int"}], "new": "MaxKey",
    }  # fmt: skip


def test_a_number_goes_only_where_it_keeps_its_value():
    encoder = Encoder({"double": "double", "decimal": "decimal", "long": "long", "int": "int"})
    fits = {"double": Int64(2**53), "decimal": Decimal128("1E+19"), "long": 5, "int": 5}
    assert encoder.encode(fits).rest is None
    others = {
        "double": Int64(2**53 + 1), "decimal": Decimal128("1E-19"), "long": 5.0, "int": Int64(5),
    }  # fmt: skip
    assert encoder.encode(others).rest == others
    assert encoder.encode({"decimal": Decimal128("NaN")}).rest is not None
    assert encoder.encode({"decimal": Decimal128("1E+20")}).rest is not None


def test_dates_beyond_all_calendars_are_kept_in_the_rest():
    assert Encoder({"at": "date"}).encode({"at": DatetimeMS(2**60)}).rest == {"at": DatetimeMS(2**60)}


def test_names_that_cannot_be_columns():
    assert list(columns_of({"Name": 1, "name": 2, "a.b": 3, "": 4, "_rest": 5, "_KEY": 6, "ä": 7, "0": 8})) == [
        "Name",
        "ä",
    ]
    assert columns_of({"o": {"_rest": 5, "X": 1, "x": 1}}) == {"o": {"_rest": "int", "X": "int"}}


def test_there_is_a_limit_to_columns():
    assert len(list(leaves(columns_of({f"f{n}": {"x": n, "y": n} for n in range(50)}, limit=7)))) == 7


def test_unknown_shapes_wait():
    first = columns_of({"a": None, "b": [], "c": {}, "d": [None], "e": Timestamp(1, 1)})
    assert first == {}
    assert evolve(first, [shape_of({"b": [1], "c": {"x": "y"}})], Limits(9)).columns == {
        "b": ["int"],
        "c": {"x": "string"},
    }


def test_declared_columns():
    assert parse_columns("a int, o.x string, o.y date,tags string[]") == {
        "a": "int", "o": {"x": "string", "y": "date"}, "tags": ["string"],
    }  # fmt: skip
    assert shape_text({"o": {"x": ["int"]}, "n": None}) == "{o: {x: [int]}, n: null}"
    with pytest.raises(SettingsError, match="declares no column"):
        parse_columns("a varchar")


@given(DOCUMENTS, DOCUMENTS)
def test_columns_and_rest_together_hold_every_value(first, second):
    """No value of a document is lost between the columns and the rest, for columns made by other documents."""
    left, right = (extended_json.decode(bson.encode(document)) for document in (first, second))
    for columns in (columns_of(left), columns_of(right), columns_of(left, right)):
        encoded = Encoder(columns).encode(left)
        for name, value in left.items():
            assert value is None or name in encoded.values or name in (encoded.rest or {})
        grown = evolve(columns, [encoded.drift or {}], Limits(1_000)).columns
        again = Encoder(grown).encode(left)
        assert evolve(grown, [again.drift or {}], Limits(1_000)).changes == (), "one step is enough"
