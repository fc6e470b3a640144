from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import WriteError

from capture_harness import Harness, documents_of
from tailrace.capture.positions import open_store
from tailrace.capture.recovery.gaps import GapLedger
from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.reader import Quarantine, StreamReader
from tailrace.capture.source.source import ChangeStreamSource, Selection, Start, make_source
from tailrace.driver import Batch
from tailrace.errors import GapOpen
from tailrace.event import EventBatch

MEGABYTE = 2**20
LONG = pytest.mark.long
TRANSACTION_TOO_LARGE_FOR_CACHE = 388


def read(reader: StreamReader, wanted: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    deadline = time.monotonic() + 200
    while len(events) < wanted:
        assert time.monotonic() < deadline, f"only {len(events)} events came"
        batch = reader.get(1)
        events += [bson.decode(event) for event in (batch.events if batch else ())]
    return events


@pytest.mark.parametrize("kind", ["change-stream", "oplog"])
@pytest.mark.mongodb("6.0.5", "6.0.27", pytest.param("7.0.28", marks=pytest.mark.long))
def test_an_event_over_16_mb_is_neither_lost_nor_met_for_ever(database: Database[dict[str, Any]], kind: str) -> None:
    collection = database.create_collection("big", changeStreamPreAndPostImages={"enabled": True})
    selection = Selection(
        Namespaces.parse([f"{database.name}.big"]),
        full_document="updateLookup",
        full_document_before_change="whenAvailable",
        max_await_ms=100,
    )
    source = make_source(kind, database.client, selection)
    token, _ = source.now()
    collection.insert_one({"_id": 0})
    collection.insert_one({"_id": 1, "text": "x" * 9 * MEGABYTE})
    collection.update_one({"_id": 1}, {"$set": {"changed": True}})  # both images: over 18 MB
    collection.insert_one({"_id": 2})
    reader = StreamReader(source, Start(token), Quarantine(), 32 * MEGABYTE)
    events = read(reader, 4)
    reader.close()
    assert [(event["operationType"], event["documentKey"]["_id"]) for event in events] == [
        ("insert", 0),
        ("insert", 1),
        ("update", 1),
        ("insert", 2),
    ]
    assert events[2]["fullDocument"]["changed"] is True
    split = "fullDocumentBeforeChange" in events[2]
    assert split or events[2]["imageFetched"] is True


@pytest.mark.parametrize("kind", ["change-stream", "oplog"])
@pytest.mark.mongodb("6.0.5", pytest.param("5.0.4", marks=LONG), pytest.param("4.4.2", marks=LONG), "4.2.6")
def test_a_run_until_idle_goes_past_all_large_events(
    database: Database[dict[str, Any]], tmp_path: Path, kind: str
) -> None:
    """Around each of them streams are opened anew, and a new one may begin with an empty batch."""
    selection = {"full_document": "updateLookup"}
    harness = Harness(database.client, tmp_path, [f"{database.name}.big"], kind=kind, selection=selection)
    harness.run_until_idle(start="now")
    wanted = []
    for number in range(3):
        database.big.insert_one({"_id": number, "text": "x" * 9 * MEGABYTE})
        with database.client.start_session() as session, nullcontext() if number < 2 else session.start_transaction():
            if number == 2:  # one of several events of one time, the last that there is
                database.big.insert_one({"_id": "before"}, session=session)
            large = {"$set": {"other": "y" * 6 * MEGABYTE}}  # with lookup over 16 MB
            database.big.update_one({"_id": number}, large, session=session)
        wanted += [("insert", number), *([("insert", "before")] if number == 2 else []), ("update", number)]
        if number < 2:
            database.big.insert_one({"_id": -number - 1, "text": "z" * ((16 * MEGABYTE - 100) if number else 1)})
            wanted.append(("insert", -number - 1))
    harness.run_until_idle()
    assert [(event["operationType"], event["documentKey"]["_id"]) for event in harness.events()] == wanted


def test_a_run_until_idle_does_not_end_at_an_empty_batch(
    database: Database[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may answer with one at any place, because it took its time."""
    honest = ChangeStreamSource.open

    def open_hesitant(source: ChangeStreamSource, start: Start, **options: Any) -> Any:
        stream = honest(source, start, **options)
        batches = stream.batches

        def hesitant() -> Iterator[EventBatch]:
            token = start.token
            for batch in batches():
                if token is not None:
                    yield from [Batch([], token, batch.operation_time)] * 2
                yield batch
                token = batch.token

        monkeypatch.setattr(stream, "batches", hesitant)
        return stream

    harness = Harness(database.client, tmp_path, [f"{database.name}.orders"])
    harness.run_until_idle(start="now")
    database.orders.insert_many([{"_id": key} for key in range(3)])
    monkeypatch.setattr(ChangeStreamSource, "open", open_hesitant)
    harness.run_until_idle()
    assert len(harness.delivered) == 3


def insert_when_there_is_room(collection: Collection[dict[str, Any]], document: dict[str, Any]) -> None:
    """Insert, trying again while the small cache of the server is full of what was written before."""
    for _ in range(60):
        try:
            collection.insert_one(document)
            return
        except WriteError as error:
            if error.code != TRANSACTION_TOO_LARGE_FOR_CACHE:
                raise
            collection.database.client.admin.command("fsync")
    pytest.fail("the cache stays full")


@pytest.mark.parametrize("kind", ["change-stream", "oplog"])
@pytest.mark.mongodb("6.0.5", pytest.param("5.0.4", marks=LONG), pytest.param("4.4.2", marks=LONG), "4.2.6")
def test_an_event_that_no_form_fits_is_a_gap_that_is_recovered(
    database: Database[dict[str, Any]], tmp_path: Path, kind: str
) -> None:
    """The token of an `_id` of 6 MB has 12 MB, beside the documentKey: no server can give such an event at all."""
    harness = Harness(database.client, tmp_path, [f"{database.name}.big"], kind=kind)
    harness.run_until_idle(start="now")
    database.big.insert_one({"_id": 0})
    insert_when_there_is_room(database.big, {"_id": "x" * 6 * MEGABYTE})
    database.big.insert_one({"_id": 1})
    with pytest.raises(GapOpen):
        harness.run_until_idle(recover=False)
    assert [event["documentKey"]["_id"] for event in harness.events()] == [0]
    with open_store(f"file:{tmp_path / 'positions'}") as store:
        assert [gap.reason for gap in GapLedger(store.cells, "orders").all()][1:] == ["event-unreadable"]
    harness.run_until_idle()
    assert harness.state() == documents_of(database.big)
    database.big.delete_one({"_id": 1})
    harness.run_until_idle()
    assert harness.state() == documents_of(database.big)
