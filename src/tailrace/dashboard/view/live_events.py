"""The newest events, held for the page in a bounded number of bytes."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import Any

import orjson
from bson import json_util

from tailrace.dashboard.answers import EventDetail, EventLine, ObservedEvent
from tailrace.dashboard.record_view import as_json, as_text
from tailrace.errors import InvalidResumeToken
from tailrace.token import ResumeToken, describe

LARGEST_VALUE = 256 * 1024
"""Larger values are held by their beginning only."""


class EventRing:
    """The newest events; the oldest make room. Written by one thread, read by any."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._events: deque[ObservedEvent] = deque()
        self.buffered_bytes = 0
        """How much is held now."""
        self.count = 0
        """How many events were ever added; the number of the newest."""

    def add(self, event: ObservedEvent) -> ObservedEvent:
        """Take an event, and give it its number."""
        if len(event.value) > LARGEST_VALUE:
            event = replace(event, value=event.value[:LARGEST_VALUE], is_cut=True)
        with self._lock:
            self.count += 1
            event = replace(event, line=replace(event.line, number=self.count))
            self._events.append(event)
            self.buffered_bytes += event.size
            while self.buffered_bytes > self._limit and len(self._events) > 1:
                self.buffered_bytes -= self._events.popleft().size
        return event

    def since(self, number: int, most: int) -> list[EventLine]:
        """Give the newest events after a number, the oldest first."""
        found: list[EventLine] = []
        with self._lock:
            for event in reversed(self._events):
                if event.line.number <= number or len(found) >= most:
                    break
                found.append(event.line)
        return found[::-1]

    def newest(self, limit: int, *, namespace: str = "", operation: str = "", text: str = "") -> list[EventLine]:
        """Give the newest events that match, the newest first; `text` is looked for in all that a line shows."""
        wanted = text.lower()
        with self._lock:
            lines = [event.line for event in self._events]
        found = []
        for line in reversed(lines):
            fits = namespace in ("", line.namespace) and operation in ("", line.operation)
            if fits and wanted in f"{line.namespace} {line.operation} {line.key} {line.summary}".lower():
                found.append(line)
                if len(found) >= limit:
                    break
        return found

    def find(self, number: int) -> ObservedEvent | None:
        """Give an event by its number, as long as it is held."""
        with self._lock:
            if not self._events or not self._events[0].line.number <= number <= self.count:
                return None
            return self._events[number - self._events[0].line.number]


def detail_of(event: ObservedEvent) -> EventDetail:
    """Give an event in full."""
    shown: Any = as_text(event.value) if event.is_cut else as_json(event.value)
    return EventDetail(
        line=event.line,
        source=event.source,
        token=event.token,
        token_parts=token_parts(event.token),
        headers=event.headers,
        event=shown,
        is_cut=event.is_cut,
    )


def token_parts(token: str) -> dict[str, Any]:
    """Decode a token into what JSON can show; what is wrong with it is shown in its place."""
    if not token:
        return {}
    try:
        parts = describe(ResumeToken.from_hex(token).decode())
    except InvalidResumeToken as error:
        return {"problem": error.message}
    shown: dict[str, Any] = orjson.loads(json_util.dumps(parts, json_options=json_util.RELAXED_JSON_OPTIONS))
    return shown
