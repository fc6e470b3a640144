"""Images: where they are taken from, where they stand, and what happens without them."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Int64
from bson.timestamp import Timestamp

from engine.small_oplog import UUID, entry, events_of, insert, open_small
from tailrace.engine.images import NoImages
from tailrace.errors import ImageMissing

BEFORE = {"_id": 1, "a": 1, "list": [1, 2, 3]}
UPDATE = entry(
    1,
    "u",
    "shop.orders",
    {"$v": 2, "diff": {"u": {"a": 2}, "slist": {"a": True, "l": 1}}},
    o2={"_id": 1},
)
DELETE = entry(2, "d", "shop.orders", {"_id": 1})


class Store(NoImages):
    """Images kept in dictionaries; remembers what was asked."""

    def __init__(self, *, pre_images: dict[tuple[int, int], Any] | None = None, current: Any = None) -> None:
        self.pre_images = pre_images or {}
        self.current = current
        self.asked: list[tuple[Any, ...]] = []

    def current_document(self, namespace: bytes, uuid: bytes | None, key: bytes, since: int) -> bytes | None:
        self.asked.append((namespace, uuid, bson.decode(key)))
        return None if self.current is None else bson.encode(self.current)

    def pre_image(self, uuid: bytes, time: int, index: int) -> bytes | None:
        self.asked.append((uuid, time, index))
        found = self.pre_images.get((time & 0xFFFFFFFF, index))
        return None if found is None else bson.encode(found)


STORED = {(1, 0): BEFORE, (2, 0): {"_id": 1, "a": 2, "list": [1]}}


def test_pre_images_of_6_0_stand_last() -> None:
    store = Store(pre_images=STORED)
    update, delete = events_of(open_small(UPDATE, DELETE, images=store, fullDocumentBeforeChange="required"))
    assert list(update.items())[-1] == ("fullDocumentBeforeChange", BEFORE)
    assert list(delete.items())[-1] == ("fullDocumentBeforeChange", STORED[2, 0])
    assert store.asked[0] == (bytes(UUID), 100 << 32 | 1, 0)


def test_post_images_are_computed_from_pre_images() -> None:
    [update] = events_of(open_small(UPDATE, images=Store(pre_images=STORED), fullDocument="required"))
    assert update["fullDocument"] == {"_id": 1, "a": 2, "list": [1]}
    names = list(update)
    assert names.index("fullDocument") == names.index("ns") - 1


@pytest.mark.parametrize(
    ("option", "code", "word"),
    [("fullDocument", 47, "post-image"), ("fullDocumentBeforeChange", 47, "pre-image")],
)
def test_a_required_image_that_is_missing_ends_the_stream(option: str, code: int, word: str) -> None:
    with pytest.raises(ImageMissing, match=f"require a {word}") as missing:
        open_small(UPDATE, images=Store(), **{option: "required"}).next_batch()
    assert missing.value.server_code == code
    [update] = events_of(open_small(UPDATE, images=Store(), **{option: "whenAvailable"}))
    assert update[option] is None


def test_an_event_that_the_filter_drops_needs_no_image() -> None:
    other = [{"$match": {"ns.coll": "elsewhere"}}]
    store = Store()
    stream = open_small(UPDATE, images=store, pipeline=other, fullDocumentBeforeChange="required")
    assert events_of(stream) == []
    assert store.asked == []


def test_a_filter_on_the_image_itself_waits_for_it() -> None:
    by_image = [{"$match": {"fullDocument.a": 2, "operationType": "update"}}]
    store = Store(current={"_id": 1, "a": 2})
    assert len(events_of(open_small(UPDATE, images=store, pipeline=by_image, fullDocument="updateLookup"))) == 1


@pytest.mark.parametrize(
    ("version", "options", "uuid"),
    [
        ("4.2.6", {}, bytes(UUID)),
        ("6.0.5", {}, bytes(UUID)),
        ("6.0.27", {}, None),
        ("6.0.27", {"matchCollectionUUIDForUpdateLookup": True}, bytes(UUID)),
    ],
)
def test_documents_are_looked_up_as_the_server_does(version: str, options: Any, uuid: bytes | None) -> None:
    store = Store(current={"_id": 1, "now": True})
    stream = open_small(UPDATE, images=store, version=version, fullDocument="updateLookup", **options)
    [update] = events_of(stream)
    assert update["fullDocument"] == {"_id": 1, "now": True}
    assert store.asked == [(b"shop.orders", uuid, {"_id": 1})]


def test_a_document_that_is_gone_is_null() -> None:
    [update] = events_of(open_small(UPDATE, images=Store(), fullDocument="updateLookup"))
    assert update["fullDocument"] is None


def test_only_updates_are_looked_up() -> None:
    store = Store(current={"_id": 9})
    insert_event, delete = events_of(open_small(insert(1, 1), DELETE, images=store, fullDocument="updateLookup"))
    assert insert_event["fullDocument"] == {"_id": 1}
    assert "fullDocument" not in delete
    assert store.asked == []


# --- 4.4 and 5.0 keep pre-images in the oplog

NOTE = entry(1, "n", "shop.orders", BEFORE)
WITH_NOTE = entry(2, "d", "shop.orders", {"_id": 1}, preImageOpTime={"ts": Timestamp(100, 1), "t": Int64(1)})


def test_pre_images_of_5_0_stand_before_the_namespace() -> None:
    stream = open_small(NOTE, WITH_NOTE, version="5.0.4", fullDocumentBeforeChange="required")
    [delete] = events_of(stream)
    names = list(delete)
    assert delete["fullDocumentBeforeChange"] == BEFORE
    assert names.index("fullDocumentBeforeChange") == names.index("ns") - 1


def test_5_0_tells_a_lost_pre_image_from_none() -> None:
    lost, none = WITH_NOTE, entry(3, "d", "shop.orders", {"_id": 2})
    first, second = events_of(open_small(lost, none, version="5.0.4", fullDocumentBeforeChange="whenAvailable"))
    assert first["fullDocumentBeforeChange"] is None
    assert "fullDocumentBeforeChange" not in second
    for log, code in ((lost, 286), (none, 51770)):
        with pytest.raises(ImageMissing) as missing:
            open_small(log, version="5.0.4", fullDocumentBeforeChange="required").next_batch()
        assert missing.value.server_code == code
