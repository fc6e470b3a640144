"""The fast path of the fold: the same rows, letters and reports from the kernel as from Python alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

import hostile_bson
from bson_strategies import DOCUMENTS
from odd_events import BODIES, mutated
from tailrace import kernel, raw
from tailrace.errors import BsonMalformed
from tailrace.raw import extended_json
from tailrace.warehouse.columns.evolution import Limits, evolve
from tailrace.warehouse.columns.shapes import shape_of
from tailrace.warehouse.mirror.fast_fold import FastFold
from tailrace.warehouse.mirror.staging import DEAD_LETTER, EVENTS, REPORT, Plan, Report, folding

TOKEN = "8265F0A1B2{:08X}2B0229296E04"
DOCUMENT: dict[str, Any] = {
    "_id": ObjectId("0" * 24),
    "b": True,
    "i": 5,
    "l": Int64(5),
    "d": 1.5,
    "n": Decimal128("-12.50"),
    "s": "x",
    "t": DatetimeMS(1_000),
    "u": Binary(b"0123456789abcdef", 4),
    "y": b"\0",
    "o": {"x": 1, "deep": {"y": "z", "list": [[1.5], None, []]}},
    "a": [{"v": 1, "w": [b"1"]}, None, {}],
    "v": [Int64(1), None, 2],
}
COLUMNS = evolve({}, [shape_of(DOCUMENT)], Limits(100)).columns
pytestmark = pytest.mark.skipif(kernel.module() is None, reason="the kernel is not there")

Event = tuple[bytes, int, str, str, bytes | None, str | None]


def event(number: int, version: int, document: bytes | None, operation: str = "insert", increment: int = 1) -> Event:
    """An event of the document of a number."""
    head = bson.encode({"operationType": operation, "documentKey": {"_id": number}})
    data = head if document is None else raw.append(head, raw.element(raw.DOCUMENT, b"fullDocument", document))
    return bytes([number]), version, TOKEN.format(increment), operation, data, None


def folded(events: Sequence[Event], plan: Plan) -> tuple[list[dict[str, Any]], list[Any]]:
    columns = zip(*events, strict=True)
    table = pa.Table.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, EVENTS.types, strict=True)], schema=EVENTS
    )
    batches = list(folding(plan)(table.to_batches(3)))
    for batch in batches:
        batch.validate(full=True)
    rows = pa.Table.from_batches(batches).to_pylist()
    report = Report()
    for row in rows:
        if row["_row"] == REPORT:
            report.add(row["_rest"])
    rest = [row for row in rows if row["_row"] != REPORT]
    told = [report.rows, report.deleted, report.refused, report.dead_letters, report.least, report.greatest]
    return sorted(rest, key=repr), [*told, report.shape, report.counts]


def assert_alike(events: Sequence[Event], plan: Plan | None = None) -> list[dict[str, Any]]:
    """Compare what becomes of events, or the error that there is instead; gives the rows."""
    outcomes: list[Any] = []
    for way in ("on", "off"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(kernel.VARIABLE, way)
            try:
                outcomes.append(folded(events, plan or Plan(COLUMNS)))
            except (BsonMalformed, TypeError) as error:
                outcomes.append([repr(error)])
    assert repr(outcomes[0]) == repr(outcomes[1])
    rows: list[dict[str, Any]] = outcomes[0][0]
    return rows


def is_fast(document: bytes) -> bool:
    """Whether the kernel takes a document."""
    events = pa.Table.from_pylist([dict(zip(EVENTS.names, event(1, 1, document), strict=True))], schema=EVENTS)
    return FastFold(COLUMNS, Plan(COLUMNS).arrow(), takes_deletes=True).fold(events)[1].num_rows == 0


def test_every_kind_of_column_is_the_kernels():
    (row,) = assert_alike([event(1, 1, bson.encode(DOCUMENT))])
    assert (row["s"], row["u"], row["o"]["deep"]["list"]) == (
        "x",
        "30313233-3435-3637-3839-616263646566",
        [[1.5], None, []],
    )
    assert is_fast(bson.encode(DOCUMENT))
    wider = {**DOCUMENT, "l": 7, "d": 7, "n": Int64(-7), "unknown": None, "o": {"deep": {}}, "a": []}
    assert is_fast(bson.encode(dict(reversed(wider.items()))))
    assert_alike([event(1, 1, bson.encode(dict(reversed(wider.items()))))])


@pytest.mark.parametrize(
    "strange",
    [
        {"more": 1},
        {"s": 5},
        {"o": {"x": "1"}},
        {"o": {"$ref": None, "$id": None}},
        {"v": [1, "2"]},
        {"d": Int64(2**53 + 1)},
        {"n": Decimal128("1E-19")},
        {"n": Decimal128("1E+20")},
        {"n": Decimal128("NaN")},
        {"t": DatetimeMS(2**60)},
        {"u": Binary(b"0123456789abcdef", 3)},
        {"y": Binary(b"1", 5)},
        {"a": {"0": 1}},
    ],
)
def test_what_fits_no_column_is_pythons(strange):
    document = bson.encode({**DOCUMENT, **strange})
    assert not is_fast(document)
    assert_alike([event(1, 1, document), event(2, 1, bson.encode(DOCUMENT))])


@pytest.mark.parametrize(
    "number",
    ["0", "-0", "0E+96", "-0E+6000", "0E-6000", "1E+19", "9999999999999999.999999999999999999", "1.50E-17", "-3E5"],
)
def test_decimals(number):
    document = bson.encode({"n": Decimal128(number)})
    assert is_fast(document)
    assert_alike([event(1, 1, document)])


@given(st.lists(st.tuples(DOCUMENTS.map(bson.encode) | BODIES, st.booleans()), min_size=1, max_size=6))
def test_any_documents(given_):
    """Columns are those that some of the documents ask for."""
    known = []
    for document, is_known in given_:
        if is_known:
            try:
                known.append(shape_of(extended_json.decode(document)))
            except Exception:
                continue
    plan = Plan(evolve({}, [one for one in known if isinstance(one, dict)], Limits(50)).columns)
    assert_alike([event(number, 1, document) for number, (document, _) in enumerate(given_)], plan)


def test_mutated_documents():
    chance, good = random.Random(1), bson.encode(DOCUMENT)
    for _ in range(1_000):
        assert_alike([event(1, 1, mutated(chance, good)), event(2, 1, good)])


def test_hostile_documents():
    documents = [each for _, element in hostile_bson.elements() for each in hostile_bson.documents(element)]
    documents += [each for _, each in hostile_bson.deep_and_large()]
    plans = [Plan({"v": kind}) for kind in ("double", "decimal", "date", "string", ["int"], {"v": "int"})]
    for plan in plans:
        for first in range(0, len(documents), 100):
            chosen = documents[first : first + 100]
            assert_alike([event(number, 1, document) for number, document in enumerate(chosen)], plan)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.integers(1, 4),
            st.integers(1, 3),
            st.sampled_from(["insert", "update", "replace", "delete", "read", "base"]),
            st.sampled_from([None, {"s": "x"}, {"i": 1, "s": "y"}, {"s": 5}]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_any_events(given_, marks):
    """Deletes, events of one cluster time, updates without a document, rows that are there already."""
    events = []
    for number, version, increment, operation, document in given_:
        data = None if document is None or operation == "delete" else bson.encode(document)
        if operation == "base":
            events.append((bytes([number]), version, TOKEN.format(increment), operation, data or bson.encode({}), None))
        else:
            events.append(event(number, version, data, operation, increment))
    assert_alike(events, Plan(COLUMNS, marks=marks))


def test_other_plans_are_pythons():
    given_ = [event(1, 1, bson.encode(DOCUMENT)), event(2, 1, bson.encode({"_id": None})), event(3, 2, None, "delete")]
    for plan in (Plan({"_id": "string", "document": "string"}, as_json=True), Plan({}), Plan(COLUMNS, refuses=True)):
        assert_alike(given_, plan)


def test_letters_of_a_strict_table():
    rows = assert_alike([event(1, 1, bson.encode({"more": 1}))], Plan(COLUMNS, refuses=True))
    assert DEAD_LETTER in {row["_row"] for row in rows}
