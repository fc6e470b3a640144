"""Bad bytes in the oplog: only the library's own errors come out."""

from __future__ import annotations

import bson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bson_strategies import DOCUMENTS
from engine.small_oplog import command, entry, insert, open_small, operation, shard_of, transaction
from tailrace import raw
from tailrace.engine.recording import RecordedOplog
from tailrace.errors import OplogEntryInvalid, TailraceError
from tailrace.oplog.entry import OplogEntry
from tailrace.oplog.transactions import operations
from tailrace.oplog.update_diff import apply_delta, update_description

_DIFF = {"u": {"a": 1}, "i": {"b": 2}, "d": {"c": False}, "sx": {"a": True, "l": 1, "u0": 5, "s1": {"u": {"q": 1}}}}
_ENTRIES = [
    insert(1, 1),
    entry(1, "u", "shop.orders", {"$v": 2, "diff": _DIFF}, o2={"_id": 1}),
    entry(1, "u", "shop.orders", {"$v": 1, "$set": {"a": 1}, "$unset": {"b": True}}, o2={"_id": 1}),
    entry(1, "d", "shop.orders", {"_id": 1}),
    command(1, "shop", {"drop": "orders"}),
    command(1, "shop", {"renameCollection": "shop.orders", "to": "shop.other", "dropTarget": True}),
    command(1, "shop", {"create": "orders", "idIndex": {"v": 2}}),
    command(1, "shop", {"commitIndexBuild": "orders", "indexes": [{"v": 2}]}),
    command(1, "shop", {"collMod": "orders"}, o2={"collectionOptions_old": {}}),
    entry(1, "n", "shop.orders", {}, o2={"shardCollection": "shop.orders", "shardKey": {"a": 1}}),
    entry(1, "i", "shop.system.views", {"_id": "shop.v", "viewOn": "orders", "pipeline": []}),
    transaction(1, [operation(1), operation(2)]),
    transaction(1, [operation(1)], previous=1),
]


@st.composite
def damaged_entries(draw: st.DrawFn) -> bytes:
    """Take an entry and change, cut or lengthen it."""
    data = bytearray(draw(st.sampled_from(_ENTRIES)))
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data) + draw(st.binary(max_size=3))


def read_everything(raw_entry: bytes) -> None:
    """Send an entry through the whole engine, as one of a collection, a database and a cluster."""
    shard = shard_of(insert(0, 0))
    shard.entries.append(raw_entry)
    shard.times.append((100 << 32) + 1)
    oplog = RecordedOplog(shard)
    for database, collection, options in (
        ("shop", "orders", {}),
        ("shop", None, {"showExpandedEvents": True}),
        ("admin", None, {"allChangesForCluster": True, "showSystemEvents": True, "showExpandedEvents": True}),
    ):
        stream = open_small(database=database, collection=collection, **options)
        stream._reader = oplog.open(0)
        stream.next_batch()


@settings(max_examples=400, deadline=None)
@given(damaged_entries())
def test_damaged_entries_raise_only_our_errors(raw_entry: bytes) -> None:
    try:
        read_everything(raw_entry)
    except TailraceError:
        pass


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS)
def test_any_document_as_an_update_raises_only_our_errors(document: dict[str, object]) -> None:
    update = bson.encode({"$v": 2, "diff": document})
    for use in (update_description, lambda data: apply_delta(bson.encode({"a": [1]}), bson.encode(document))):
        try:
            use(update)
        except TailraceError:
            pass


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS)
def test_any_document_as_a_transaction_raises_only_our_errors(document: dict[str, object]) -> None:
    commit = OplogEntry(transaction(1, [document]))
    try:
        for found in operations(commit, lambda time: commit):
            assert found.operation.op
    except TailraceError:
        pass


def test_a_key_nested_without_end_is_refused() -> None:
    key = raw.EMPTY
    for _ in range(5_000):
        key = raw.document(raw.element(raw.DOCUMENT, b"_id", key))
    deep = raw.append(raw.without(insert(1, 1), b"o2"), raw.element(raw.DOCUMENT, b"o2", key))
    with pytest.raises(OplogEntryInvalid, match="nested"):
        read_everything(deep)


def test_the_undamaged_entries_are_read() -> None:
    for raw_entry in _ENTRIES[:-1]:
        read_everything(raw_entry)
    with pytest.raises(TailraceError):
        read_everything(_ENTRIES[-1])
