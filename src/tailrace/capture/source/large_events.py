"""The way past an event that is over 16 MB, on servers that cannot split it (before 6.0.9).

The stream cannot give such an event: every resume would meet the same error. So it is read once more without its
images, and the document is fetched by its key instead, as it is now.

An `_id` of 6 MB makes an event that no form fits: its token has the `_id` in hexadecimal digits, and the documentKey
has it too. 4.2, 4.4, 5.0 and 6.0.5 answer 10334 then, for ever, so that history is lost (`EventUnreadable`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from tailrace import raw
from tailrace.capture.classifier import Remedy, classify
from tailrace.capture.snapshot.planner import RAW
from tailrace.capture.source.source import EventSource, Start, UnfinishedBatch
from tailrace.driver import Batch
from tailrace.errors import EventUnreadable
from tailrace.event import ChangeEvent, EventBatch

_WITH_DOCUMENT = ("insert", "replace", "update")


def read_past_large_event(source: EventSource, start: Start) -> Iterator[EventBatch]:
    """Give what lies before the large event, one by one, and then the event itself in a smaller form."""
    try:
        for batch in _batches(source, start):
            yield batch if batch.events else _unfinished(batch)
            if batch.token is not None:
                start = Start(batch.token)
    except Exception as error:
        if classify(error).remedy is not Remedy.READ_SMALLER:
            raise
    try:
        for batch in _batches(source, start, without_images=True):
            if batch.events:
                event = _with_document(source.documents(), batch.events[0])
                yield Batch([event], batch.token, batch.operation_time)
                return
    except Exception as error:
        if classify(error).remedy is not Remedy.READ_SMALLER:
            raise
        raise EventUnreadable("an event is over 16 MB without its images too, so the stream cannot pass it") from error


def _unfinished(batch: EventBatch) -> EventBatch:
    """Say of an empty batch that more is to come: the large event is, whatever the server gives before it."""
    return batch if batch.token is None else UnfinishedBatch(batch.token, batch.operation_time)


def _batches(source: EventSource, start: Start, *, without_images: bool = False) -> Iterator[EventBatch]:
    stream = source.open(start, one_by_one=True, without_images=without_images)
    try:
        yield from stream.batches()
    finally:
        stream.close()


def _with_document(client: MongoClient[Any], event: bytes) -> bytes:
    """Add the document as it is now, where the event would have had one; a deleted one stays out.

    `imageFetched` says that it may be newer than the event.
    """
    view = ChangeEvent(event)
    key, (database, name) = view.document_key, view.database_and_collection
    if key is None or database is None or name is None or view.operation_type not in _WITH_DOCUMENT:
        return event
    found = client[database].get_collection(name, codec_options=RAW).find_one(RawBSONDocument(key))
    marks = [raw.element(raw.BOOL, b"imageFetched", raw.boolean(True))]
    if found is not None:
        marks.append(raw.element(raw.DOCUMENT, b"fullDocument", bytes(found.raw)))
    return raw.append(event, *marks)
