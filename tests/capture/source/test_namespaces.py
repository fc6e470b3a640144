from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

from tailrace.capture.source.namespaces import WHOLE, Namespaces, Slice
from tailrace.capture.source.source import Selection, Start, captured_collections, make_source
from tailrace.errors import SettingsError


@pytest.mark.parametrize("text", ["", ".", "shop.", ".orders", "/[/"])
def test_what_is_no_namespace_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        Namespaces.parse([text])


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", "-1/2"])
def test_what_is_no_slice_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        Slice.parse(text)


def test_every_key_is_in_exactly_one_slice() -> None:
    slices = [Slice(number, 4) for number in range(1, 5)]
    keys = [f"key {number}".encode() for number in range(1_000)]
    counts = [sum(each.has_key(key) for key in keys) for each in slices]
    assert sum(counts) == len(keys)
    assert min(counts) > 150
    assert WHOLE.keep(keys) is keys


@pytest.mark.parametrize("kind", ["change-stream", "oplog"])
@pytest.mark.mongodb("4.2.6", "6.0.5", pytest.param("7.0.28", marks=pytest.mark.long))
def test_the_filter_of_events_and_the_list_of_collections_agree(database: Database[dict[str, Any]], kind: str) -> None:
    name = database.name
    chosen = Namespaces.parse([f"{name}.orders", rf"/{name}\.log_\d+/"])
    selection = Selection(chosen, max_await_ms=50)
    source = make_source(kind, database.client, selection)
    token, _ = source.now()
    for collection in ("orders", "orders_old", "log_1", "log_12", "log_x", "other"):
        database[collection].insert_one({"collection": collection})
    database.log_1.drop()
    database.other.rename("log_7")
    stream = source.open(Start(token))
    seen: list[tuple[str, str]] = []
    for batch in stream.batches():
        seen += [(event["operationType"], event["ns"]["coll"]) for event in map(_decoded, batch.events)]
        if not batch.events and seen:
            break
    stream.close()
    assert seen == [
        ("insert", "orders"),
        ("insert", "log_1"),
        ("insert", "log_12"),
        ("drop", "log_1"),
        ("rename", "other"),
    ]
    database.create_collection("view", viewOn="orders", pipeline=[])
    mine = [found for found in captured_collections(database.client, selection) if found.startswith(f"{name}.")]
    assert mine == [f"{name}.log_12", f"{name}.log_7", f"{name}.orders"]


def _decoded(event: bytes) -> dict[str, Any]:
    import bson

    return bson.decode(event)
