"""Documents whose `_id` is of every BSON type: snapshot, stream, inventory, recovery."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import (
    Binary,
    Code,
    DatetimeMS,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Timestamp,
)
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection

from capture_harness import Harness
from tailrace import raw
from tailrace.capture.formats import make_format
from tailrace.capture.recovery.inventory import LocalInventory
from tailrace.fold import id_of_value
from tailrace.stand import ReplicaSet

RAW = bson.CodecOptions(document_class=RawBSONDocument)
IDS: list[Any] = [
    0.5, float("nan"), float("inf"), -0.0, Int64(2**60), Decimal128("1.5"), Decimal128("1E+6000"),
    "text", "nul \x00 inside", "", "\ud7ff\ue000", {}, {"a": 1}, {"a": {"b": None}}, {"a": 1.5, "b": [1, {"c": 2}]},
    Binary(b""), Binary(b"\x00\xff", 128), Binary(bytes(16), 4), ObjectId("0" * 24), False, True, None,
    DatetimeMS(0), DatetimeMS(-(2**62)), DatetimeMS(2**62), Timestamp(0, 1), Timestamp(2**32 - 1, 2**32 - 1),
    Code("f()"), Code("f()", {"x": 1}), MinKey(), MaxKey(),
]  # fmt: skip


def fill(collection: Collection[Any], *, with_old_types: bool) -> None:
    """Insert every `_id`; symbols and pointers, which pymongo makes no more, can be carried by one format alone."""
    documents = [RawBSONDocument(bson.encode({"_id": value, "v": 0})) for value in IDS]
    text = (7).to_bytes(4, "little") + b"symbol\0"
    for kind, data in ((raw.SYMBOL, text), (raw.DB_POINTER, text + bytes(12))) if with_old_types else ():
        documents.append(RawBSONDocument(raw.document(raw.element(kind, b"_id", data))))
    collection.insert_many(documents)
    collection.insert_many([{"_id": DatetimeMS(2**61 + number)} for number in range(600)])


def there(collection: Collection[Any]) -> set[bytes]:
    found = collection.with_options(RAW).find({}, {"_id": 1})
    return {id_of_value(value) for each in found if (value := raw.field(bytes(each.raw), b"_id")) is not None}


def captured(harness: Harness) -> set[bytes]:
    assert harness.inventory is not None
    known = harness.inventory.keys()
    return {id_of_value(value) for _, key in known if (value := raw.field(key, b"_id")) is not None}


@pytest.mark.parametrize("format_name", ["bson", "canonical", "json"])
def test_every_type_of_id_through_a_snapshot_a_gap_and_its_recovery(
    start_mongodb: Callable[..., ReplicaSet], tmp_path: Path, format_name: str
) -> None:
    replica_set = start_mongodb(oplog_mb=1)
    with replica_set.client() as client:
        orders = client.shop.orders
        fill(orders, with_old_types=format_name == "bson")
        inventory = LocalInventory(tmp_path / "keys.sqlite")
        harness = Harness(client, tmp_path, ["shop.orders"], format=make_format(format_name), inventory=inventory)
        harness.options["chunk_bytes"] = 1_000
        harness.run_until_idle()
        assert captured(harness) == there(orders)
        orders.update_many({}, {"$set": {"v": 1}})
        harness.run_until_idle()
        assert captured(harness) == there(orders)
        assert harness.aside == []
        gone = [each.raw for each in orders.with_options(RAW).find({}, {"_id": 1}).limit(400)]
        for key in gone[::2]:
            orders.delete_one(RawBSONDocument(bytes(key)))
        replica_set.roll_over_oplog()
        harness.run_until_idle()
        assert captured(harness) == there(orders)
