"""Columns of events: the same from the kernel, from Python, and from events that are decoded already."""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
from collections.abc import Sequence
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pyspark.sql import types

import hostile_bson
from bson_strategies import DOCUMENTS
from odd_events import change_events, mutated
from tailrace import kernel, raw
from tailrace.spark.columns import ENVELOPE, KEY, EventColumns
from tailrace.token import ResumeToken

_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_SCHEMA = types.StructType([*ENVELOPE.fields, types.StructField(KEY, types.BinaryType())])
_TIME = Timestamp(5, 7)
_REFERENCE = {"$ref": "c", "$id": 1}
"""A document that becomes a DBRef when what is around it is decoded."""
_IMAGES = st.none() | DOCUMENTS | st.just(_REFERENCE)


@examples(max_examples=60, deadline=None)
@given(
    operation=st.sampled_from(("insert", "update", "delete", "drop")),
    id_=st.integers(0, 2**40) | st.text() | st.just(ObjectId()) | DOCUMENTS,
    parts=st.fixed_dictionaries(
        {},
        optional={
            "clusterTime": st.just(_TIME),
            "wallTime": st.just(DatetimeMS(5)),
            "fullDocument": _IMAGES,
            "fullDocumentBeforeChange": _IMAGES,
            "updateDescription": _IMAGES,
        },
    ),
)
def test_decoded_events_give_the_same_columns(operation, id_, parts):
    place = {"_id": bson.decode(ResumeToken.high_water_mark(_TIME).to_bson()), "operationType": operation}
    event = bson.encode({**place, "ns": {"db": "d", "coll": "c"}, "documentKey": {"_id": id_}, **parts})
    columns = EventColumns(_SCHEMA)
    assert columns.batch([event], [bson.decode(event, _OPTIONS)]).equals(columns.batch([event]))


@pytest.fixture(scope="module")
def both() -> tuple[EventColumns, EventColumns]:
    """The same columns from the kernel and from the reference."""
    module = pytest.importorskip("tailrace_kernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(kernel.VARIABLE, "on")
        compiled = EventColumns(_SCHEMA)
        assert isinstance(compiled._compiled, module.EventColumns)
        patch.setenv(kernel.VARIABLE, "off")
        return compiled, EventColumns(_SCHEMA)


def assert_alike(both: tuple[EventColumns, EventColumns], events: Sequence[bytes]) -> None:
    """Compare rows, or the error that there is instead."""
    outcomes: list[Any] = []
    for columns in both:
        try:
            rows = columns.batch(events)
            rows.validate(full=True)
            outcomes.append(rows)
        except Exception as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]


@examples(max_examples=60, deadline=None)
@given(st.lists(change_events(), max_size=6))
def test_any_events_give_the_same_columns_in_the_kernel(both, events):
    assert_alike(both, events)


@pytest.mark.parametrize("recording", ["4.2.6", "7.0.28", "sharded-6.0.5"])
def test_recorded_and_mutated_events_give_the_same_columns_in_the_kernel(both, recording, recordings):
    """`make fuzz-kernel INPUTS=10000000` is the long form; there each hundredth is compared."""
    with gzip.open(recordings / f"{recording}.jsonl.gz") as lines:
        read = [json.loads(line) for line in lines]
    events = [base64.b64decode(line["bson"]) for line in read if line["kind"] == "event" and "bson" in line]
    assert len(both[0]._compiled.batch(events)[1]) < len(events) / 4, "the kernel makes most of them"
    assert_alike(both, events)
    chance = random.Random(int(os.environ.get("SEED", "1")))
    for number in range(0, int(os.environ.get("INPUTS", "6000")) // 3, 100):
        batch = [mutated(chance, chance.choice(events)) for _ in range(100)]
        if number < 10_000 or number % 10_000 == 0:
            for event in batch:
                assert_alike(both, [event])
        both[0]._compiled.batch(batch)


def test_hostile_documents_give_the_same_columns_in_the_kernel(both):
    token = bson.decode(ResumeToken.high_water_mark(_TIME).to_bson())
    head = bson.encode({"_id": token, "operationType": "insert", "ns": {"db": "d", "coll": "c"}})
    documents = [each for _, element in hostile_bson.elements() for each in hostile_bson.documents(element)]
    documents += [each for _, each in hostile_bson.deep_and_large()]
    for document in documents:
        for name in (b"fullDocument", b"documentKey"):
            assert_alike(both, [raw.append(head, raw.element(raw.DOCUMENT, name, document))])


def test_rows_keep_their_order_around_an_event_that_the_kernel_declines(both):
    names = ("insert", "rename", "insert", "drop", "rename", "delete")
    place = {"_id": bson.decode(ResumeToken.high_water_mark(_TIME).to_bson()), "ns": {"db": "d", "coll": "c"}}
    events = [bson.encode({**place, "operationType": name, "documentKey": {"_id": n}}) for n, name in enumerate(names)]
    assert both[0]._compiled.batch(events)[1] == [1, 4]
    assert both[0].batch(events).column("op").to_pylist() == list(names)
    assert_alike(both, events)
