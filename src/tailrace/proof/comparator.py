"""Two streams of the same events, joined: what is the same, and what is not.

Nearly always the next event of one side is the next of the other. Where it is not, the events of one cluster time are
set against each other once both sides have left it, so that one that is missing does not set all later ones apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from tailrace import raw
from tailrace.errors import BsonMalformed, TailraceError
from tailrace.event import ChangeEvent
from tailrace.proof.kind import MARK, Kind
from tailrace.token import ResumeToken

_TIME_DIGITS: Final = slice(2, 18)
"""Where a token's text has the cluster time."""
_LOOKED_UP: Final = b"fullDocument"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One event of both sides, or of one of them, or the positions of both."""

    kind: Kind
    server: bytes | None
    engine: bytes | None
    is_same: bool


class _Side:
    """What one side gave that is not compared yet."""

    def __init__(self) -> None:
        self.events: deque[tuple[int, bytes]] = deque()
        self.reached = 0
        """Everything before this time has come."""
        self.mark: bytes | None = None
        """The newest position that is not an event's."""
        self.size = 0

    def add(self, events: Sequence[bytes], position: bytes | None) -> None:
        for event in events:
            time = _time_of_event(event, self.reached)
            self.reached = max(self.reached, time)
            self.events.append((time, event))
            self.size += len(event)
        if position is not None:
            self.mark = position if is_mark(position) else self.mark
            self.reached = max(self.reached, _time_of(position, self.reached))

    def pop(self) -> bytes:
        event = self.events.popleft()[1]
        self.size -= len(event)
        return event

    def take(self, time: int) -> list[bytes]:
        """Take all events of a time, which are the next ones."""
        taken = []
        while self.events and self.events[0][0] <= time:
            taken.append(self.pop())
        return taken


class Comparator:
    """Takes batches of either side, in any rhythm, and says what can be said of them."""

    def __init__(self, *, looks_up: bool = False) -> None:
        """`looks_up`: documents are read when each side comes to the event, so they may differ in time."""
        self._server, self._engine = _Side(), _Side()
        self._looks_up = looks_up
        self._marks: tuple[bytes | None, bytes | None] = (None, None)

    @property
    def size(self) -> int:
        """Bytes of events that wait for the other side."""
        return self._server.size + self._engine.size

    @property
    def server_time(self) -> int:
        """How far the server's side has come."""
        return self._server.reached

    @property
    def engine_time(self) -> int:
        """How far the engine's side has come."""
        return self._engine.reached

    def server(self, events: Sequence[bytes], position: bytes | None) -> list[Comparison]:
        """Take a batch of the server's own stream, with the position behind it."""
        self._server.add(events, position)
        return list(self._compared())

    def engine(self, events: Sequence[bytes], position: bytes | None) -> list[Comparison]:
        """Take a batch of the engine's."""
        self._engine.add(events, position)
        return list(self._compared())

    def pair(self, server: bytes, engine: bytes) -> Comparison:
        """Compare two events that are known to belong together."""
        return Comparison(Kind.of(server), server, engine, self._is_same(server, engine))

    def _compared(self) -> Iterator[Comparison]:
        server, engine = self._server, self._engine
        while server.events and engine.events:
            left, right = server.events[0][1], engine.events[0][1]
            if not self._is_same(left, right):
                break
            yield Comparison(Kind.of(left), server.pop(), engine.pop(), True)
        yield from self._different()
        marks = server.mark, engine.mark
        if marks != self._marks and marks[0] is not None and marks[1] is not None:
            self._marks = marks
            yield Comparison(MARK, *marks, _without_time(marks[0]) == _without_time(marks[1]))

    def _different(self) -> Iterator[Comparison]:
        """Set the events of the next time against each other, when both sides have left it."""
        heads = [side.events[0][0] for side in (self._server, self._engine) if side.events]
        while heads and min(heads) < min(self._server.reached, self._engine.reached):
            time = min(heads)
            yield from self._pairs(self._server.take(time), self._engine.take(time))
            heads = [side.events[0][0] for side in (self._server, self._engine) if side.events]

    def _pairs(self, server: list[bytes], engine: list[bytes]) -> Iterator[Comparison]:
        """Pair what is the same first, wherever it stands: one that is missing moves all others."""
        left_over = []
        for event in server:
            found = next((each for each in engine if self._is_same(event, each)), None)
            if found is None:
                left_over.append(event)
            else:
                engine.remove(found)
                yield Comparison(Kind.of(event), event, found, True)
        for ours, theirs in zip_longest(left_over, engine):
            yield Comparison(Kind.of(ours if ours is not None else theirs), ours, theirs, False)

    def _is_same(self, server: bytes, engine: bytes) -> bool:
        return server == engine or (self._looks_up and _without_lookup(server) == _without_lookup(engine))


def _without_lookup(event: bytes) -> list[bytes]:
    """Give an update's fields without the document that was looked up, which either side may have found gone."""
    try:
        parts = list(raw.elements(event))
        if not any(name == b"updateDescription" for _, name, _, _ in parts):
            return [event]
        empty = (raw.DOCUMENT, raw.NULL)
        return [
            name if name == _LOOKED_UP and kind in empty else raw.element(kind, name, event[begin:end])
            for kind, name, begin, end in parts
        ]
    except BsonMalformed:
        return [event]


def _time_of_event(event: bytes, otherwise: int) -> int:
    try:
        return int(ChangeEvent(event).token_time)
    except TailraceError:
        return otherwise


def is_mark(token: bytes) -> bool:
    """Distinguish a position between events from that of an event; one that cannot be read is compared as it is."""
    try:
        return ResumeToken.parse(token).decode().is_high_water_mark
    except TailraceError:
        return True


def _time_of(token: bytes, otherwise: int) -> int:
    try:
        return int(_text(token)[_TIME_DIGITS], 16)
    except ValueError:
        return otherwise


def _without_time(token: bytes) -> bytes:
    """Give a position without its time: the two sides read on at different moments."""
    text = _text(token)
    return token.replace(text, text[:2] + text[18:]) if text else token


def _text(token: bytes) -> bytes:
    try:
        found = raw.field(token, b"_data")
    except BsonMalformed:
        return b""
    return b"" if found is None or found.kind != raw.STRING else found.data[4:-1]
