"""Columns of events: the same from the bytes alone as from events that are decoded already."""

from __future__ import annotations

from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pyspark.sql import types

from bson_strategies import DOCUMENTS
from tailrace.capture.formats.plain_event import Cutter
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


@examples(max_examples=60, deadline=None)
@given(
    operation=st.sampled_from(("insert", "update", "replace", "delete")),
    id_=st.integers(0, 2**40) | st.just(ObjectId()) | DOCUMENTS,
    wall_time=st.none() | st.just(DatetimeMS(5)),
    document=st.none() | DOCUMENTS | st.just(_REFERENCE),
    update=st.none() | DOCUMENTS,
)
def test_events_laid_out_as_servers_do_give_the_same_columns(operation, id_, wall_time, document, update):
    """These are cut by their layout; decoded before, their columns come from the fields."""
    event: dict[str, Any] = {"_id": bson.decode(ResumeToken.high_water_mark(_TIME).to_bson())}
    event |= {"operationType": operation, "clusterTime": _TIME}
    event |= {} if wall_time is None else {"wallTime": wall_time}
    event |= {} if document is None else {"fullDocument": document}
    event |= {"ns": {"db": "d", "coll": "c"}, "documentKey": {"_id": id_}}
    event |= {} if update is None else {"updateDescription": update}
    data = bson.encode(event)
    assert Cutter().cut(data) is not None
    columns = EventColumns(_SCHEMA)
    assert columns.batch([data]).equals(columns.batch([data], [bson.decode(data, _OPTIONS)]))
