"""Values in columns that a user has declared: each fits or is named as one that does not, and none ends a query."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

import hostile_bson
from tailrace import raw
from tailrace.errors import BsonMalformed, EventUnconvertible
from tailrace.raw import extended_json
from tailrace.spark.typed import converter

KINDS: list[types.DataType] = [
    types.StringType(), types.DoubleType(), types.FloatType(), types.BooleanType(), types.TimestampType(),
    types.DateType(), types.BinaryType(), types.ByteType(), types.ShortType(), types.IntegerType(), types.LongType(),
    types.DecimalType(38, 18), types.DecimalType(5, 2), types.ArrayType(types.StringType()),
    types.MapType(types.StringType(), types.StringType()),
    types.StructType([types.StructField("v", types.TimestampType())]),
]  # fmt: skip


def values() -> list[object]:
    found: list[object] = []
    for _, element in hostile_bson.elements():
        for document in hostile_bson.documents(element):
            try:
                raw.validate(document)
                found += extended_json.decode(document).values()
            except (BsonMalformed, EventUnconvertible):
                continue
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.simpleString())
def test_what_a_server_stores_fits_or_is_a_mismatch(kind: types.DataType) -> None:
    convert, to_arrow, fitting = converter(kind), to_arrow_type(kind), 0
    for value in values():
        mismatches: list[str] = []
        column = pa.array([convert(value, "v", mismatches)], to_arrow)
        assert mismatches or value is None or column.null_count == 0
        fitting += not mismatches
    assert fitting
