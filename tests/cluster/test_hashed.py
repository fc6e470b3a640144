"""Hashes of shard keys are those of the server."""

from __future__ import annotations

import datetime
from typing import Any

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from pymongo.database import Database

import hostile_bson
from tailrace import raw
from tailrace.cluster.placement import hash_of

VALUES = [
    0, 1, -7, Int64(1), 1.0, 1.9, -1.9, 1e300, float("inf"), float("nan"), 2**53 + 1, Decimal128("12.5"), "", "text",
    "é", True, False, None, ObjectId("0123456789abcdef01234567"), datetime.datetime(2024, 1, 1), Timestamp(5, 6),
    b"bytes", Binary(b"0123456789abcdef", 4), {}, {"a": 1}, {"a": {"b": [1, "x"]}, "c": 2}, Regex("a", "i"), Code("x"),
    MinKey(), MaxKey(), *hostile_bson.decimals(),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_hash_is_the_servers(database: Database[dict[str, Any]], value: Any) -> None:
    told = database.client.admin.command(bson.SON([("_hashBSONElement", value), ("seed", 0)]))
    assert hash_of(raw.from_python(value)) == told["out"]
