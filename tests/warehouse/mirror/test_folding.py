"""The events of one document become its newest state, whatever is repeated, missing or out of order."""

from __future__ import annotations

import random
from typing import Any

import bson

from tailrace.fold import BASE
from tailrace.fold.documents import BASE_UNKNOWN, DELTA_MISSING
from tailrace.warehouse.mirror.folding import KeyEvent, fold


def event(version: int, operation: str, document: Any = None, **update: Any) -> KeyEvent:
    parts = {"fullDocument": document} if document is not None or operation == "looked up" else {}
    described = {"updateDescription": update} if update else {}
    return KeyEvent(version, f"t{version}", operation, bson.encode({**parts, **described}))


def base(version: int, document: Any) -> KeyEvent:
    return KeyEvent(version, f"t{version}", BASE, bson.encode(document))


def test_the_order_of_arrival_does_not_matter():
    events = [
        event(1, "insert", {"_id": 1, "a": 1, "list": [1, 2, 3]}),
        event(2, "update", updatedFields={"a": 2, "b.c": 1}, removedFields=[]),
        event(3, "update", updatedFields={"list.1": 5}, truncatedArrays=[{"field": "list", "newSize": 2}]),
        event(4, "update", updatedFields={}, removedFields=["b.c"]),
    ]
    for seed in range(5):
        shuffled = events + events[1:3]
        random.Random(seed).shuffle(shuffled)
        folded = fold(shuffled)
        assert bson.decode(folded.document or b"") == {"_id": 1, "a": 2, "list": [1, 5], "b": {}}
        assert (folded.version, folded.token, folded.is_deleted, folded.unknown) == (4, "t4", False, [])


def test_a_delta_is_applied_to_what_the_mirror_has():
    folded = fold([event(5, "update", updatedFields={"a": 2}), base(3, {"_id": 1, "a": 1, "b": 7})])
    assert bson.decode(folded.document or b"") == {"_id": 1, "a": 2, "b": 7}
    assert folded.is_changed


def test_events_that_the_mirror_has_already_change_nothing():
    folded = fold([base(5, {"_id": 1, "a": 2}), event(5, "update", updatedFields={"a": 2}), event(4, "delete")])
    assert (folded.is_changed, folded.is_deleted, folded.version) == (False, False, 5)


def test_an_update_of_an_unknown_document_is_handed_back():
    lost = event(5, "update", updatedFields={"a": 2})
    folded = fold([lost])
    assert (folded.document, folded.is_deleted, folded.is_changed) == (None, False, False)
    assert folded.unknown == [(lost, BASE_UNKNOWN)]


def test_a_lookup_that_found_nothing_is_no_delete():
    found_nothing = KeyEvent(5, "t5", "update", bson.encode({"fullDocument": None, "updateDescription": {}}))
    assert not fold([found_nothing]).is_deleted
    folded = fold([base(3, {"_id": 1}), found_nothing])
    assert (folded.document, folded.is_deleted) == (bson.encode({"_id": 1}), False)


def test_what_comes_later_makes_good_what_was_unknown():
    lost = event(5, "update", updatedFields={"a": 2})
    assert fold([lost, event(6, "replace", {"_id": 1})]).unknown == []
    gone = fold([lost, event(6, "delete")])
    assert (gone.is_deleted, gone.unknown) == (True, [])


def test_an_update_without_a_description_is_handed_back_and_the_document_stays():
    folded = fold([base(1, {"_id": 1}), event(2, "update")])
    assert [cause for _, cause in folded.unknown] == [DELTA_MISSING]
    assert not folded.is_changed


def test_dots_that_belong_to_names():
    update = {"updatedFields": {"a.b.0": 5, "c.d": 6}, "disambiguatedPaths": {"a.b.0": ["a.b", 0], "c.d": ["c.d"]}}
    folded = fold([base(1, {"_id": 1, "a.b": [1, 2], "c": 1}), event(2, "update", **update)])
    assert bson.decode(folded.document or b"") == {"_id": 1, "a.b": [5, 2], "c": 1, "c.d": 6}
