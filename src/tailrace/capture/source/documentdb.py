"""Change streams of Amazon DocumentDB: as its documentation describes them.

Its tokens begin with the byte 1 and the cluster time. It gives none behind empty batches, so a position is an event's,
or a time that nothing has come after yet; the latter is written like the beginning of a token, and begins at that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from tailrace import raw, server_codes
from tailrace.capture.source.source import ChangeStreamSource, Scope, Start
from tailrace.errors import HistoryLost
from tailrace.event import EventBatch, EventStream, StreamOf
from tailrace.families import check_documentdb
from tailrace.token import ResumeToken

_TIME_BYTES: Final = 9


class DocumentDbSource(ChangeStreamSource):
    """The server's own change streams, opened as DocumentDB takes them."""

    _is_checked = False

    def open(self, start: Start, *, one_by_one: bool = False, without_images: bool = False) -> EventStream:
        """Open a stream behind a token, or at the time that a position without an event stands for."""
        self._check()
        if start.token is not None and (time := _time_alone(start.token)) is not None:
            start = Start(time=time)
        try:
            stream = super().open(start, one_by_one=one_by_one, without_images=without_images)
        except OperationFailure as error:
            raise translated(error) from error
        return StreamOf(lambda: _translated_batches(stream), stream.close)

    def now(self) -> tuple[bytes, Timestamp]:
        """Give the server's operation time as a position."""
        self._check()
        time: Timestamp = self.client.admin.command("ping")["operationTime"]
        key = b"\x01" + time.time.to_bytes(4, "big") + time.inc.to_bytes(4, "big")
        return ResumeToken(key).to_bson(), time

    @property
    def gives_marks(self) -> bool:
        """It has no post-batch tokens."""
        return False

    @property
    def _resumes_after(self) -> bool:
        """`startAfter` is not among the options that it documents."""
        return True

    def _check(self) -> None:
        """Say before the first stream what cannot work."""
        if self._is_checked:
            return
        chosen = self.selection
        names = [*chosen.watched.collections, *chosen.watched.databases]
        whole = chosen.watched.patterns or chosen.scope is Scope.CLUSTER
        check_documentdb(
            self.client, [] if whole and not names else names, before_change=chosen.full_document_before_change
        )
        self._is_checked = True


def _translated_batches(stream: EventStream) -> Iterator[EventBatch]:
    """Give the batches of a stream, with `HistoryLost` for a lost position."""
    try:
        yield from stream.batches()
    except OperationFailure as error:
        raise translated(error) from error


def translated(error: OperationFailure) -> Exception:
    """Give `HistoryLost` for the code by which DocumentDB says that its log no longer reaches back so far."""
    details: Any = error.details or {}
    if error.code == server_codes.CAPPED_POSITION_LOST:
        return HistoryLost(str(details.get("errmsg", error)))
    return error


def _time_alone(token: bytes) -> Timestamp | None:
    found = raw.field(token, b"_data")
    if found is None or found.kind != raw.STRING:
        return None
    key = ResumeToken.parse(token).key
    return ResumeToken(key).cluster_time if len(key) == _TIME_BYTES and key[:1] == b"\x01" else None
