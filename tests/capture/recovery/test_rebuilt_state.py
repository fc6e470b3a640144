from __future__ import annotations

import copy
from itertools import permutations
from typing import Any

import bson
import orjson
import pytest
from bson import Int64
from pymongo.database import Database

from tailrace.capture.formats import decoder_of, make_format, recovered_delete
from tailrace.capture.formats.stored_records import StoredRecord
from tailrace.capture.recovery.rebuilt_state import RebuiltState
from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.source import ChangeStreamSource, Selection, Start
from tailrace.fold.update_description import apply_update


def record(operation: str, key: Any, document: Any = None) -> StoredRecord:
    return StoredRecord("d.c", operation, {"_id": key}, document)


def documents(state: RebuiltState, namespace: str = "d.c") -> list[Any]:
    return [orjson.loads(known.document or b"null") for _, known in state.documents(namespace)]


def test_the_greatest_cluster_time_wins_also_over_a_delete() -> None:
    state = RebuiltState()
    state.apply(record("insert", 1, {"_id": 1, "v": 1}), (10, ""))
    state.apply(record("read", 1, {"_id": 1, "v": 0}), (5, ""))
    state.apply(record("delete", 2), (20, ""))
    state.apply(record("read", 2, {"_id": 2}), (15, ""))
    assert documents(state) == [{"_id": 1, "v": 1}]
    assert state.newest == 20
    state.close()


def test_a_document_whose_shard_key_changed_outlives_the_delete_under_its_old_key() -> None:
    """The two are of one cluster time and in two partitions, which may be read in any order."""
    old, new = {"x": 1, "_id": 5}, {"x": 2, "_id": 5}
    moved = [
        StoredRecord("d.c", "delete", old),
        StoredRecord("d.c", "insert", new, {"_id": 5, "x": 2}),
    ]
    for order in (moved, moved[::-1]):
        state = RebuiltState()
        state.apply(StoredRecord("d.c", "insert", {"_id": 5}, {"_id": 5, "x": 1}), (1, ""))  # before it was sharded
        for each in order:
            state.apply(each, (2, ""))
        assert documents(state) == [{"_id": 5, "x": 2}]
        state.apply(StoredRecord("d.c", "delete", new), (3, ""))
        assert documents(state) == []
        state.close()


def test_numbers_of_different_types_are_one_document() -> None:
    state = RebuiltState()
    for key in (5, 5.0, Int64(5)):
        state.apply(record("insert", key, {"_id": 5}), (1, ""))
    assert len(documents(state)) == 1
    state.close()


def test_a_document_whose_shard_key_was_refined_can_be_deleted() -> None:
    """Its newest record has the shorter shard key, the delete the longer one."""
    state = RebuiltState()
    state.apply(StoredRecord("d.c", "insert", {"x": 1, "_id": 5}, {"_id": 5, "x": 1, "y": 2}), (1, ""))
    state.apply(StoredRecord("d.c", "delete", {"x": 1, "y": 2, "_id": 5}), (2, ""))
    assert documents(state) == []
    state.close()


def test_updates_before_their_document_wait_for_it() -> None:
    """As they do when a collection was sharded, or a topic got partitions: then the keys are in other ones."""
    updates = [
        (StoredRecord("d.c", "insert", {"_id": 1}, {"_id": 1, "a": 1, "b": 1}), (5, "")),
        (StoredRecord("d.c", "update", {"_id": 1}, None, {"updatedFields": {"a": 7}}), (7, "")),
        (StoredRecord("d.c", "update", {"x": 1, "_id": 1}, None, {"updatedFields": {"b": 10}}), (10, "")),
    ]
    for order in permutations(updates):
        state = RebuiltState()
        for each, at in order:
            state.apply(each, at)
        assert documents(state) == [{"_id": 1, "a": 7, "b": 10}]
        state.close()


@pytest.mark.parametrize("name", ["json", "canonical", "bson", "debezium"])
def test_deltas_rebuild_what_the_server_has(database: Database[dict[str, Any]], name: str) -> None:
    """Every kind of update, told by real events without full documents, ends in the server's own documents."""
    namespace = f"{database.name}.c"
    source = ChangeStreamSource(database.client, Selection(Namespaces.parse([namespace]), max_await_ms=50))
    token, _ = source.now()
    collection = database.c
    collection.insert_many(
        [{"_id": key, "a": {"b": 1}, "list": [1, 2, {"x": 1}, 4], "n": Int64(7)} for key in range(4)]
    )
    collection.update_one({"_id": 0}, {"$set": {"a.b": 2.5, "a.new": [bson.ObjectId()]}, "$unset": {"n": 1}})
    collection.update_one({"_id": 1}, [{"$set": {"list": {"$slice": ["$list", 2]}}}])
    collection.update_one({"_id": 1}, {"$push": {"list": {"y": [None, True]}}})
    collection.update_one({"_id": 2}, {"$set": {"list.2.x": "deep", "a": 5}})
    collection.replace_one({"_id": 3}, {"only": bson.Decimal128("1.5")})
    collection.insert_one({"_id": "gone"})
    collection.delete_one({"_id": "gone"})
    state, decoder, format_ = RebuiltState(), decoder_of(name), make_format(name)
    stream = source.open(Start(token))
    for batch in stream.batches():
        for event in batch.events:
            for made in format_.records(event):
                if made.value is not None and made.key is not None:
                    state.apply(
                        decoder.read(made.key, made.value), (made.cluster_time, dict(made.headers)["token"].decode())
                    )
        if not batch.events and state.newest:
            break
    stream.close()
    expected = [decoder.spelled(bson.encode(document)) for document in collection.find().sort("_id")]
    assert documents(state, namespace) == expected
    state.close()


def test_a_delta_meant_for_an_older_document_does_no_harm() -> None:
    newer: dict[str, Any] = {"_id": 1, "a": 5, "list": [1]}
    replayed = copy.deepcopy(newer)
    for update in ({"updatedFields": {"a.b": 1, "list.3": 4}}, {"updatedFields": {"a": 5}},
                   {"truncatedArrays": [{"field": "list", "newSize": 1}]}):  # fmt: skip
        apply_update(replayed, update)
    assert replayed == newer


def test_recovered_deletes_are_read_as_deletes() -> None:
    from bson.timestamp import Timestamp

    from tailrace.token import ResumeToken

    event = recovered_delete(
        "d.c", bson.encode({"_id": "x"}), ResumeToken.high_water_mark(Timestamp(9, 1)).to_bson(), Timestamp(9, 1)
    )
    (made,) = make_format("json").records(event)
    assert made.value is not None
    found = decoder_of("json").read(made.key or b"", made.value)
    assert (found.operation, found.document_key) == ("delete", {"_id": "x"})
