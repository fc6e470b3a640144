"""Decimals are the numbers that servers take them for."""

from __future__ import annotations

from typing import Any

import pytest
from bson.codec_options import CodecOptions
from bson.decimal128 import Decimal128
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

import hostile_bson
from tailrace import raw
from tailrace.engine.expression import compile_pipeline
from tailrace.raw.decimals import to_decimal

STAGES: list[dict[str, Any]] = [
    {"$match": {"v": {name: number}}}
    for name in ("$eq", "$gt", "$lte", "$ne")
    for number in (0, 1, 2.5, Decimal128("NaN"), Decimal128("-Infinity"))
]
STAGES += [{"$match": {"v": {"$in": [1, number]}}} for number in hostile_bson.decimals()]
STAGES += [{"$project": {"x": {name: ["$v", 1]}}} for name in ("$cmp", "$max", "$min", "$and")]


@pytest.mark.parametrize("number", list(hostile_bson.decimals()), ids=lambda number: number.bid.hex())
def test_every_decimal_is_a_number(number: Decimal128) -> None:
    found = to_decimal(number)
    assert found == found or found.is_qnan()
    float(found)


@pytest.mark.parametrize("stage", STAGES, ids=range(len(STAGES)))
def test_comparisons_are_those_of_the_server(database: Database[Any], stage: dict[str, Any]) -> None:
    documents = database.get_collection("decimals", CodecOptions(document_class=RawBSONDocument))
    for place, number in enumerate(hostile_bson.decimals()):
        parts = raw.element(raw.INT32, b"_id", raw.int32(place)), raw.element(raw.DECIMAL128, b"v", number.bid)
        documents.replace_one({"_id": place}, RawBSONDocument(raw.document(*parts)), upsert=True)
    stored = [each.raw for each in documents.find().sort("_id")]
    ours = compile_pipeline([stage], server_version=database.client.server_info()["version"])
    servers = [each.raw for each in documents.aggregate([{"$sort": {"_id": 1}}, stage])]
    assert [each for document in stored if (each := ours(document)) is not None] == servers
