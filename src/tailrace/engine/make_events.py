"""The first stages as one: entries of the oplog become events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from tailrace.engine.event import Event, Events
from tailrace.engine.match import Relevance, Relevant, match
from tailrace.engine.transform import Transform
from tailrace.engine.unwind import Unwind
from tailrace.oplog.entry import OplogEntry

MakeEvents: TypeAlias = Callable[[list[bytes]], Iterator[Events]]
"""Gives the events of a batch of entries, in batches of bounded size; an error comes behind what precedes it."""


class EventsOfEntries:
    """Match, unwind and transform: the reference for whatever does the same faster."""

    def __init__(self, relevant: Relevant, unwind: Unwind, transform: Transform) -> None:
        self._relevant = relevant
        self._unwind = unwind
        self._transform = transform

    def __call__(self, entries: list[bytes]) -> Iterator[list[Event]]:
        """Give the events of entries."""
        matched: list[tuple[OplogEntry, Relevance]] = []
        error: Exception | None = None
        try:
            match(entries, self._relevant, matched)
        except Exception as raised:
            error = raised
        for changes in self._unwind(matched):
            events: list[Event] = []
            try:
                self._transform(changes, events)
            except Exception:
                yield events
                raise
            yield events
        if error is not None:
            raise error
