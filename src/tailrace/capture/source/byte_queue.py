"""A queue between two threads that is bounded in bytes, not in items."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """The queue was closed: nothing goes in any more."""


class ByteQueue(Generic[T]):
    """Holds items until their sizes add up to the limit; one item always fits, however large.

    The reader may also be given an error, which it meets after everything that was put in before.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: deque[tuple[int, T]] = deque()
        self._buffered = 0
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()

    @property
    def buffered(self) -> int:
        """Bytes that wait to be taken."""
        return self._buffered

    def put(self, item: T, size: int) -> None:
        """Wait for room and add an item; raises Closed when nobody will take it."""
        with self._changed:
            while self._items and self._buffered + size > self.limit and not self._closed:
                self._changed.wait()
            if self._closed:
                raise Closed
            self._items.append((size, item))
            self._buffered += size
            self._changed.notify_all()

    def get(self, timeout: float) -> T | None:
        """Take the oldest item, or None when there is none in time; raises the error that ended the writer."""
        with self._changed:
            if not self._items and self._error is None:
                self._changed.wait(timeout)
            if self._items:
                size, item = self._items.popleft()
                self._buffered -= size
                self._changed.notify_all()
                return item
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            return None

    def fail(self, error: BaseException) -> None:
        """Let the reader meet an error after all items."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse further items and let a waiting writer go."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._buffered = 0
            self._changed.notify_all()
