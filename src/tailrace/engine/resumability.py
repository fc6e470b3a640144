"""Fifth stage: find the client's position in the stream, and begin behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

from tailrace.engine.event import Event
from tailrace.engine.tokens import render_token
from tailrace.errors import StreamFatal
from tailrace.token import keystring
from tailrace.token.resume_token import ResumeToken, TokenData, TokenKind


class ResumeStatus(Enum):
    """Where an event stands, seen from the client's position."""

    CHECK_NEXT = "check next"
    """Before the position: the client has it, look on."""
    FOUND = "found"
    """This is the event of the position."""
    FOUND_WHOLE = "found whole"
    """The position is a part of this event: the client has the first parts of it."""
    SURPASSED = "surpassed"
    """Behind the position: had the position been an event of this stream, it would have come by now."""


def compare_to_resume_token(event: TokenData, client: TokenData) -> ResumeStatus:
    """Compare an event with the client's position.

    Part by part, not as bytes: the client's token may be of an older version, which lacks parts.
    """
    if event.cluster_time != client.cluster_time:
        return _later(event.cluster_time > client.cluster_time)
    if client.kind is TokenKind.HIGH_WATER_MARK:
        return ResumeStatus.SURPASSED
    if event.txn_op_index != client.txn_op_index:
        return _later(event.txn_op_index > client.txn_op_index)
    if event.from_invalidate != client.from_invalidate:
        # The event that causes an invalidate stands right before it.
        return _later(event.from_invalidate)
    if event.uuid != client.uuid:
        # Other shards have events of the same time, and collections of a database have other UUIDs.
        return _later((event.uuid or b"") > (client.uuid or b""))
    ours, theirs = _order(event.event_identifier), _order(client.event_identifier)
    if ours != theirs:
        return _later(ours > theirs)
    if client.fragment is not None and event.fragment is None:
        return ResumeStatus.FOUND_WHOLE
    return ResumeStatus.FOUND


def _later(is_later: bool) -> ResumeStatus:
    return ResumeStatus.SURPASSED if is_later else ResumeStatus.CHECK_NEXT


def _order(identifier: bytes | None) -> bytes:
    """Give bytes that order as the identifiers do; an absent one is before all others."""
    return b"" if identifier is None else keystring.encode_body(identifier, [])


def token_data(event: Event) -> TokenData:
    """Look inside an event's token."""
    return ResumeToken.parse(event.token).decode()


class PositionSearch(ABC):
    """Compares events until the position is reached; those behind it pass uncompared."""

    def __init__(self, client: TokenData) -> None:
        self._client = client
        self.is_over = False
        """Whether the position is passed: all events pass from here on."""

    def __call__(self, events: list[Event], given: list[Event]) -> None:
        """Pass on what the search lets pass."""
        compared = 0
        while not self.is_over and compared < len(events):
            event = events[compared]
            compared += 1
            status = compare_to_resume_token(token_data(event), self._client)
            self.is_over = status is not ResumeStatus.CHECK_NEXT
            if self._passes(event, status):
                given.append(event)
        given += events[compared:] if compared else events

    @abstractmethod
    def _passes(self, event: Event, status: ResumeStatus) -> bool:
        """Whether an event up to the position goes on."""


class SkipToPosition(PositionSearch):
    """Swallows the events before the position; the event of the position itself passes."""

    def _passes(self, event: Event, status: ResumeStatus) -> bool:
        return status is not ResumeStatus.CHECK_NEXT


class EnsurePositionPresent(PositionSearch):
    """Swallows the event of the position; a stream that does not have it cannot be resumed.

    An event of which the client has only some parts passes, to be split again further down.
    """

    is_found = False
    """Whether the event of the position has come by."""

    def _passes(self, event: Event, status: ResumeStatus) -> bool:
        if status is ResumeStatus.SURPASSED:
            raise StreamFatal("cannot resume stream; the resume token was not found. " + render_token(event.token))
        self.is_found = status is not ResumeStatus.CHECK_NEXT
        return status is ResumeStatus.FOUND_WHOLE
