"""Views over raw entries: what they read, and what they refuse."""

from __future__ import annotations

import bson
import pytest
from bson import Binary, Int64
from bson.timestamp import Timestamp

from tailrace.errors import OplogEntryInvalid
from tailrace.oplog.entry import NO_TIME, OplogEntry, command_name, command_target

_UUID = bytes(range(16))
_ENTRY = {
    "op": "u",
    "ns": "shop.orders",
    "ui": Binary(_UUID, 4),
    "o": {"$v": 2, "diff": {"u": {"a": 1}}},
    "o2": {"_id": 1},
    "ts": Timestamp(4_000_000_000, 7),
    "txnNumber": Int64(3),
    "lsid": {"id": 1},
    "fromMigrate": True,
    "prevOpTime": {"ts": Timestamp(5, 6), "t": Int64(1)},
}


def test_reads_every_field() -> None:
    entry = OplogEntry(bson.encode(_ENTRY))
    assert (entry.op, entry.namespace, entry.uuid) == (b"u", b"shop.orders", _UUID)
    assert entry.time == 4_000_000_000 << 32 | 7
    assert bson.decode(entry.o) == _ENTRY["o"]
    assert entry.o2 == bson.encode({"_id": 1})
    assert entry.lsid == bson.encode({"id": 1})
    assert entry.txn_number == (3).to_bytes(8, "little")
    assert entry.from_migrate
    assert entry.previous_time == 5 << 32 | 6


def test_fields_that_are_not_there_are_none() -> None:
    entry = OplogEntry(bson.encode({"op": "n", "ns": "", "o": {}}))
    assert (entry.o2, entry.uuid, entry.wall, entry.lsid, entry.txn_number) == (None,) * 5
    assert entry.previous_time == entry.pre_image_time == NO_TIME
    assert not entry.from_migrate


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ({"op": 5}, "op"),
        ({"ns": None}, "namespace"),
        ({"o": []}, "o"),
        ({"o2": 1}, "o2"),
        ({"ts": 1}, "time"),
        ({"ui": Binary(_UUID, 0)}, "uuid"),
        ({"ui": Binary(b"short", 4)}, "uuid"),
        ({"wall": 1}, "wall"),
        ({"prevOpTime": {}}, "previous_time"),
        ({"preImageOpTime": {"ts": 1}}, "pre_image_time"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused(change: dict[str, object], read: str) -> None:
    entry = OplogEntry(bson.encode(_ENTRY | change))
    with pytest.raises(OplogEntryInvalid):
        getattr(entry, read)


def test_commands_name_themselves_and_their_target() -> None:
    assert command_name(bson.encode({"drop": "orders", "x": 1})) == b"drop"
    assert command_target(bson.encode({"drop": "orders"})) == b"orders"
    assert command_target(bson.encode({"dropDatabase": 1})) is None
    with pytest.raises(OplogEntryInvalid):
        command_name(bson.encode({}))
