"""Last stages: events over 16 MB are split when the pipeline says so, and refused otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tailrace import raw
from tailrace.engine.event import Event
from tailrace.engine.resumability import token_data
from tailrace.engine.tokens import id_element, render_token
from tailrace.errors import EventTooLarge
from tailrace.token.resume_token import ResumeToken, TokenData

MAX_EVENT: Final = 16 * 1024 * 1024 + 16 * 1024
"""The largest document a server sends inside a batch."""
MAX_WITH_KEY: Final = MAX_EVENT - 8 * 1024
"""The largest event or fragment together with its token, which travels a second time as its sort key."""


def size_of(events: Iterable[Event]) -> int:
    """Give the bytes of some events together."""
    return sum([len(event.raw) for event in events])


def limit_size(events: list[Event], given: list[Event]) -> None:
    """End the stream at an event that no client could receive."""
    if size_of(events) <= MAX_EVENT:
        given += events
        return
    for event in events:
        if len(event.raw) > MAX_EVENT:
            raise _too_large(event)
        given.append(event)


def _too_large(event: Event) -> EventTooLarge:
    size = len(event.raw)
    token = render_token(event.token).removeprefix("{").removesuffix("}")
    return EventTooLarge(
        f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and {MAX_EVENT}(16MB) "
        f"First element: _id: {{ {token} }}"
    )


class Split:
    """Splits events over 16 MB into fragments, each with a token of its own.

    Resuming after a fragment, the event is split again and the fragments the client has are left out.
    """

    def __init__(self, client: TokenData | None) -> None:
        self._client = client if client is not None and client.fragment is not None else None

    def __call__(self, events: list[Event], given: list[Event]) -> None:
        """Pass small events on, and large ones as the fragments that the client does not have."""
        for event in events:
            have = self._fragments_of_client(event)
            if have == 0 and len(event.raw) + len(event.token) <= MAX_WITH_KEY:
                given.append(event)
            else:
                given += split_event(event)[have:]

    def _fragments_of_client(self, event: Event) -> int:
        """Tell how many fragments of the event the client has; only the first event can have any."""
        client, self._client = self._client, None
        if client is None or token_data(event) != replace(client, fragment=None):
            return 0
        return (client.fragment or 0) + 1


def split_event(event: Event) -> list[Event]:
    """Split an event: small fields first, so that the first fragment says what happened."""
    elements = _by_size(event.raw)
    data = token_data(event)
    parts: list[tuple[ResumeToken, list[bytes]]] = []
    while elements:
        token = ResumeToken.encode(replace(data, fragment=len(parts)))
        head = raw.document(id_element(token), _split_element(1, 1))
        capacity = MAX_WITH_KEY - len(token.to_bson()) - len(head)
        count = _how_many_fit(elements, capacity)
        if count == 0:
            raise EventTooLarge(
                f"Splitting change event failed: fragment size "
                f"{MAX_WITH_KEY - capacity + len(elements[0])} is greater than maxFragmentBsonSize {MAX_WITH_KEY}",
                server_code=7182500,
            )
        parts.append((token, elements[:count]))
        elements = elements[count:]
    return [
        event._replace(raw=raw.document(id_element(token), _split_element(number, len(parts)), *fields))
        for number, (token, fields) in enumerate(parts, 1)
    ]


def _by_size(event: bytes) -> list[bytes]:
    """Give all elements but `_id`, ordered by size and then by name."""
    found = []
    at = 4
    for _, name, _, end in raw.elements(event):
        if name != b"_id":
            found.append((end - at, name, event[at:end]))
        at = end
    return [element for _, _, element in sorted(found)]


def _how_many_fit(elements: list[bytes], capacity: int) -> int:
    for count, element in enumerate(elements):
        capacity -= len(element)
        if capacity < 0:
            return count
    return len(elements)


def _split_element(fragment: int, of: int) -> bytes:
    return raw.element(
        raw.DOCUMENT,
        b"splitEvent",
        raw.document(
            raw.element(raw.INT32, b"fragment", raw.int32(fragment)),
            raw.element(raw.INT32, b"of", raw.int32(of)),
        ),
    )
