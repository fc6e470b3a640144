"""Marks written into the source that must come back through the stream: the proof that it gives what is written.

A position that moves proves that the server answers, not that events come: a filter, a proxy or a bug could swallow
them all. A mark does. It is judged without clocks: once the position has passed the time of a mark that did not come
back, the stream has lost it.

It is off by default, because it is the only thing in all of capture that writes to the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import bson
from bson.timestamp import Timestamp
from pymongo import MongoClient, ReturnDocument
from pymongo.errors import PyMongoError

from tailrace import raw
from tailrace.event import ChangeEvent
from tailrace.logs import get_logger
from tailrace.owned import repeated
from tailrace.raw.display import decode_for_display
from tailrace.settings import masked

_log = get_logger("tailrace.capture")
_SECONDS_TO_END = 10.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark that was written."""

    number: int
    time: Timestamp
    """The cluster time of the write, or a little later."""


class Heartbeat:
    """The marks of one stream: written by a thread of its own, taken out of the events by the producer's."""

    def __init__(
        self,
        client: MongoClient[Any],
        namespace: str,
        stream: str,
        every: float,
        came_back: Callable[[float], None] = lambda _: None,
    ) -> None:
        database, _, collection = namespace.partition(".")
        self._client = client
        self._marks = client[database][collection]
        self._ns = bson.encode({"ns": {"db": database, "coll": collection}})[4:-1]
        self._stream = stream
        self._every = every
        self._came_back = came_back
        self._awaited: Mark | None = None
        self.observed = 0
        """The number of the last mark that came back; 0 before the first."""
        self._problem: str | None = None

    def writing(self) -> AbstractContextManager[None]:
        """Write marks while a block runs."""
        return repeated(
            self._try_to_write, self._every, name="tailrace-heartbeat", at_once=True, seconds_to_end=_SECONDS_TO_END
        )

    def without_marks(self, events: list[bytes]) -> list[bytes]:
        """Give the events that are no marks, and note the marks of this stream; the same list when it has none."""
        marks = {index for index in raw.documents_with(events, self._ns) if self._is_mark(events[index])}
        return [event for index, event in enumerate(events) if index not in marks] if marks else events

    def lost(self, position: Timestamp) -> Mark | None:
        """Give the mark that should have come back before the stream got to this position, and did not."""
        mark = self._awaited
        return mark if mark is not None and mark.number > self.observed and position > mark.time else None

    def _is_mark(self, event: bytes) -> bool:
        if ChangeEvent(event).namespace != self._marks.full_name:
            return False
        found = decode_for_display(event)
        if found.get("documentKey", {}).get("_id") == self._stream:
            changed = found.get("fullDocument") or found.get("updateDescription", {}).get("updatedFields", {})
            number, at = changed.get("number"), changed.get("at")
            if isinstance(number, int) and number > self.observed:
                self.observed = number
                self._came_back(max(0.0, time.time() - at) if isinstance(at, float) else 0.0)
        return True

    def _try_to_write(self) -> None:
        try:
            self._write()
            self._problem = None
        except PyMongoError as error:
            self._report_error(masked(str(error))[:300])

    def _write(self) -> None:
        """Write the next mark; its number grows with the document, whatever clocks do between two processes."""
        with self._client.start_session(causal_consistency=True) as session:
            change = {"$inc": {"number": 1}, "$set": {"at": time.time()}}
            written: Any = self._marks.find_one_and_update(
                {"_id": self._stream}, change, upsert=True, return_document=ReturnDocument.AFTER, session=session
            )
            number: int = written["number"]
            awaited = self._awaited
            if session.operation_time is not None and (awaited is None or awaited.number <= self.observed):
                self._awaited = Mark(number, session.operation_time)  # the oldest that did not come back yet

    def _report_error(self, problem: str) -> None:
        """Say once that marks cannot be written; the stream itself may be well."""
        if problem != self._problem:
            _log.warning("heartbeat_not_written", collection=self._marks.full_name, error=problem)
        self._problem = problem
