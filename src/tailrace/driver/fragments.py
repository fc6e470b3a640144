"""Put events together that the server split because they are over 16 MB.

`$changeStreamSplitLargeEvent` (6.0.9, 7.0) sends such an event as several documents. Each has a token
of its own, `splitEvent: {fragment, of}` and some of the event's top-level fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tailrace import raw

_OWN_FIELDS = (b"_id", b"splitEvent")


def splits_large_events(version: Sequence[Any]) -> bool:
    """Whether a server of this version knows the stage."""
    return (6, 0, 9) <= tuple(version[:3]) < (6, 1) or tuple(version[:2]) >= (7, 0)


class FragmentAssembler:
    """Collects fragments, over batches when need be, and gives whole events.

    A whole event has its last fragment's token: resuming there continues after the event. While
    fragments wait here the stream's position stays before their event, so that a resume reads
    them all again.
    """

    def __init__(self) -> None:
        self._waiting: list[bytes] = []

    @property
    def waits(self) -> bool:
        """Whether an event has begun that has not ended."""
        return bool(self._waiting)

    def clear(self) -> None:
        """Forget what was begun; the stream resumes before it."""
        self._waiting.clear()

    def feed(self, events: Iterable[bytes]) -> list[bytes]:
        """Take a batch and give the events that are whole now."""
        whole: list[bytes] = []
        for event in events:
            split = _split_of(event)
            if split is None or split[0] != len(self._waiting) + 1:
                # A fragment whose beginning was never read (the user resumed in its middle) stays one.
                whole.append(event)
                continue
            self._waiting.append(event)
            if split[0] == split[1]:
                whole.append(_joined(self._waiting))
                self._waiting.clear()
        return whole


def _split_of(event: bytes) -> tuple[int, int] | None:
    """Give a fragment's number and how many there are, or None for a whole event."""
    found = raw.find(event, b"splitEvent")
    if found is None or found[0] != raw.DOCUMENT:
        return None
    numbers = {name: raw.number_at(event, kind, begin) for kind, name, begin, _ in raw.elements(event, found[1])}
    fragment, of = numbers.get(b"fragment"), numbers.get(b"of")
    return None if fragment is None or of is None else (int(fragment), int(of))


def _joined(fragments: Sequence[bytes]) -> bytes:
    token = raw.field(fragments[-1], b"_id")
    parts = [raw.body(raw.without(fragment, *_OWN_FIELDS)) for fragment in fragments]
    if token is not None:
        parts.insert(0, raw.element(token.kind, b"_id", token.data))
    return raw.document(*parts)
