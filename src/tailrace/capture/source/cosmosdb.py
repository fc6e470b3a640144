"""Change streams of Azure Cosmos DB for MongoDB (request units) for capture, as its documentation describes them.

Its tokens are continuation tokens, which hold no time and have no order. Records are ordered by both, so a position
here is the moment at which the event was read, with the server's own token behind it: moments never go back, also
over restarts, and what is read twice is newer the second time and ends with the same document. A stream without a token
begins now, and no other beginning can be named.

A range that Spark reads again (`until`) gets moments between its two ends, so that it stays before all that was
read behind it. Of a document that has changed since, the server gives the last change alone, behind the range.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import bson
from bson.timestamp import Timestamp
from pymongo import MongoClient

from tailrace import raw
from tailrace.capture.source.source import ChangeStreamSource, Scope, Selection, Start, target_of
from tailrace.driver import Batch, token_of, watch
from tailrace.driver.cosmos import cosmos_event, cosmos_watch
from tailrace.errors import DeploymentUnsuitable, HistoryLost
from tailrace.event import EventBatch, EventStream
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token import ResumeToken

_MARK: Final = b"\x02"
"""The first byte of such a position; MongoDB's is 0x82 and Amazon DocumentDB's 1."""
_HEAD: Final = 9
_ENDLESS: Final = 2**64 - 1


class CosmosDbSource(ChangeStreamSource):
    """The stream of one collection, with the stages that Cosmos DB asks for, and its documents' marks as deletes."""

    def __init__(
        self,
        client: MongoClient[Any],
        selection: Selection,
        *,
        clock: Callable[[], float] = time.time,
        last_moment: int = _ENDLESS,
    ) -> None:
        """`last_moment` is the latest that an event may have been read at."""
        super().__init__(client, _of_one_collection(selection))
        self._clock = clock
        self._last_moment = last_moment
        self._last = 0
        self._begun: tuple[bytes, EventStream] | None = None
        """A position without a server's token, and the stream that was opened at that moment."""

    def open(self, start: Start, *, one_by_one: bool = False, without_images: bool = False) -> EventStream:
        """Open the stream behind a server's token, or the one that was opened when the position was made."""
        if without_images:
            raise DeploymentUnsuitable("Azure Cosmos DB for MongoDB gives no events without their documents")
        if start.token is None:
            return self._read(self._watch(None, one_by_one))
        self._last = max(self._last, ResumeToken.parse(start.token).time)
        token = server_token(start.token)
        if token is not None:
            return self._read(self._watch(token, one_by_one))
        begun, self._begun = self._begun, None
        if begun is None or begun[0] != start.token:
            raise HistoryLost(
                "Azure Cosmos DB has given no token since the stream began, so nothing tells what was written since"
            )
        return self._read(begun[1])

    def now(self) -> tuple[bytes, Timestamp]:
        """Open a stream, and give the moment: the stream itself is handed out when it is opened there."""
        if self._begun is not None:
            self._begun[1].close()
        stream = self._watch(None, one_by_one=False)
        moment = self._moment()
        position = _position(moment, b"")
        self._begun = (position, stream)
        return position, moment.timestamp

    @property
    def gives_marks(self) -> bool:
        """It has no post-batch tokens."""
        return False

    def operation_time(self) -> Timestamp:
        """Give the time of this machine: the server reports none."""
        return self._moment().timestamp

    def documents(self) -> MongoClient[Any]:
        """Refuse: documents cannot be read as of a position of the stream."""
        raise DeploymentUnsuitable(
            "the tokens of Azure Cosmos DB for MongoDB hold no time, so a snapshot cannot be put beside its stream",
            hint="Begin without one (capture.start = now), and load the collection by other means before.",
        )

    def until(self, end: bytes) -> CosmosDbSource:
        """Give a source for a range that is read again: its moments follow that of the start, up to that of the end."""
        moment = ResumeToken.parse(end).time
        return CosmosDbSource(self.client, self.selection, clock=lambda: 0, last_moment=moment)

    def _watch(self, token: bytes | None, one_by_one: bool) -> EventStream:
        chosen = self.selection
        asked = {
            "full_document": chosen.full_document,
            "full_document_before_change": chosen.full_document_before_change,
            "resume_after": None if token is None else bson.decode(token),
        }
        stages, options = cosmos_watch(target_of(self.client, chosen), chosen.pipeline, asked)
        size = 1 if one_by_one else self._events_per_batch
        stream: EventStream = watch(
            target_of(self.client, chosen), stages, **options, max_await_time_ms=chosen.max_await_ms, batch_size=size
        )
        return stream

    def _read(self, stream: EventStream) -> EventStream:
        return _CosmosStream(stream, self._moment, self.selection.soft_delete_field)

    def _moment(self) -> ClusterTime:
        """Give the time, later than any that was given before, until the last moment has come."""
        self._last = min(max(self._last + 1, ClusterTime.of(int(self._clock()), 0)), self._last_moment)
        return ClusterTime(self._last)


class _CosmosStream:
    """A stream whose events have the time at which they were read, and positions that hold it."""

    def __init__(self, stream: EventStream, moment: Callable[[], ClusterTime], soft_delete_field: str) -> None:
        self._stream = stream
        self._moment = moment
        self._soft_delete_field = soft_delete_field
        self._position: bytes | None = None

    def batches(self) -> Iterator[EventBatch]:
        """Give batch after batch; an empty one stands where the last event was."""
        for batch in self._stream.batches():
            events = [self._event(event) for event in batch.events]
            yield Batch(events, self._position, self._moment().timestamp)

    def close(self) -> None:
        """Free the cursor."""
        self._stream.close()

    def _event(self, event: bytes) -> bytes:
        moment = self._moment()
        self._position = _position(moment, token_of(event))
        read = cosmos_event(event, self._soft_delete_field)
        kept = [
            raw.element(kind, name, read[begin:end])
            for kind, name, begin, end in raw.elements(read)
            if name not in (b"_id", b"clusterTime")
        ]
        time = raw.element(raw.TIMESTAMP, b"clusterTime", raw.timestamp(moment.timestamp))
        return raw.document(raw.element(raw.DOCUMENT, b"_id", self._position), kept[0], time, *kept[1:])


def _of_one_collection(selection: Selection) -> Selection:
    """Watch the collection that is named, whatever the scope; refuse what cannot be before anything is opened."""
    chosen = selection.namespaces
    if len(chosen.collections) != 1 or chosen.databases or chosen.patterns:
        raise DeploymentUnsuitable(
            "Azure Cosmos DB for MongoDB has change streams of collections alone",
            hint="Name one in capture.namespaces, and run a producer for each collection.",
        )
    if selection.heartbeat is not None:
        raise DeploymentUnsuitable(
            "heartbeats are written into another collection, and a stream of Azure Cosmos DB has one",
            hint="Set capture.heartbeat_seconds to 0.",
        )
    return replace(selection, scope=Scope.COLLECTION)


def _position(moment: ClusterTime, token: bytes) -> bytes:
    return ResumeToken(_MARK + int(moment).to_bytes(8, "big") + token).to_bson()


def server_token(position: bytes) -> bytes | None:
    """Give the server's own token in a position; None for one that was made before there was any."""
    key = ResumeToken.parse(position).key
    return key[_HEAD:] or None if key[:1] == _MARK else None
