"""Chunks read by worker threads while the stream goes on, handed over at the very place of the stream they belong to.

A chunk is read as of a watermark W: the cluster time at the moment its read was ordered. The producer delivers the
stream up to W, then the chunk's rows, then goes on behind W. So in what is delivered every row stands after the events
it includes and before those it does not: a consumer that lets the last record win is right, and one that lets
the greatest cluster time win is right too. The order is given by the producer's thread alone, which makes it the
same for any number of workers.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from bson.timestamp import Timestamp
from pymongo import MongoClient

from tailrace.capture.classifier import classify
from tailrace.capture.snapshot.chunk import Chunk, FoundEvents, KeyCheck
from tailrace.capture.snapshot.reading import ChunkReader, watermark
from tailrace.errors import Outcome
from tailrace.owned import OwnedThread
from tailrace.policy import NO_POLICY, Policy
from tailrace.retry import DEFAULT_POLICY, Backoff, RetryPolicy


class Throttle:
    """Hands out turns so that the average stays at the limit; 0 means no limit."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._free_at = clock()
        self._lock = threading.Lock()

    def debt(self, documents: int) -> float:
        """Note that so many documents were read; give the seconds to wait before more are."""
        if self._per_second <= 0:
            return 0.0
        with self._lock:
            self._free_at = max(self._free_at, self._clock()) + documents / self._per_second
            return max(0.0, self._free_at - self._clock())


Piece = Chunk | KeyCheck | FoundEvents


@dataclass(frozen=True, slots=True)
class Rows:
    """What was read for a piece, as events: `read` for documents, recovered ones for what happened in a gap."""

    piece: Piece
    at: Timestamp
    events: list[bytes]


@dataclass(frozen=True, slots=True)
class _Failed:
    piece: Piece
    error: BaseException


class Backfill:
    """The pieces of one snapshot on their way. All methods are for the producer's thread.

    At most `workers` pieces are in memory: a worker gets its next one when its last was handed over.
    """

    def __init__(
        self,
        client: MongoClient[Any],
        pieces: Iterable[Piece | None],
        *,
        workers: int = 2,
        documents_per_second: float = 0,
        backoff: RetryPolicy = DEFAULT_POLICY,
        policy: Policy = NO_POLICY,
    ) -> None:
        self._client = client
        self._reader = ChunkReader(client, policy)
        self._pieces: Iterator[Piece | None] = iter(pieces)
        self._again: deque[Piece] = deque()
        self._workers = workers
        self._throttle = Throttle(documents_per_second)
        self._backoff = Backoff(backoff)
        self._under_way: dict[int, Timestamp] = {}
        self._ready: list[Rows] = []
        self._results: SimpleQueue[Rows | _Failed] = SimpleQueue()
        self._not_before = 0.0
        self._threads: list[OwnedThread] = []
        self._exhausted = False

    @property
    def finished(self) -> bool:
        """Whether every piece was handed over."""
        return self._exhausted and not self._again and not self._under_way and not self._ready

    @property
    def barrier(self) -> Timestamp | None:
        """The time behind which the stream must wait, until the rows of that time were handed over."""
        waiting = [*self._under_way.values(), *(rows.at for rows in self._ready)]
        return min(waiting, default=None)

    def order(self) -> None:
        """Give free workers their next pieces, as of now.

        Now is asked of the server by the thread that delivers the stream: so nothing newer was delivered yet.
        """
        if time.monotonic() < self._not_before:
            return
        free = self._workers - len(self._under_way) - len(self._ready)
        pieces = [piece for _ in range(free) if (piece := self._next()) is not None]
        if not pieces:
            return
        at = watermark(self._client)
        for piece in pieces:
            self._under_way[id(piece)] = at
            self._start(piece, at)

    def collect(self, wait: float = 0.0) -> None:
        """Take over what workers have read; a piece that could not be read is ordered again, or its error raised."""
        try:
            result = self._results.get(timeout=wait) if wait else self._results.get_nowait()
            while True:
                self._take(result)
                result = self._results.get_nowait()
        except Empty:
            return

    def due(self, passed: Callable[[Timestamp], bool]) -> list[Rows]:
        """Give the rows whose time the stream has passed, the oldest first."""
        due: list[Rows] = []
        waiting: list[Rows] = []
        for rows in self._ready:
            (due if passed(rows.at) else waiting).append(rows)
        self._ready = waiting
        return sorted(due, key=lambda rows: rows.at)

    def close(self) -> None:
        """Wait for the workers to end; what they were reading is read again by the next run."""
        for thread in self._threads:
            thread.join(timeout=30)

    def _next(self) -> Piece | None:
        if self._again:
            return self._again.popleft()
        try:
            return next(self._pieces)  # None: the next one is not ready yet
        except StopIteration:
            self._exhausted = True
            return None

    def _start(self, piece: Piece, at: Timestamp) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive]
        thread = OwnedThread(lambda: self._read(piece, at), name="tailrace-snapshot")
        self._threads.append(thread)
        thread.start()

    def _read(self, piece: Piece, at: Timestamp) -> None:
        try:
            events = self._events(piece, at)
        except BaseException as error:
            self._results.put(_Failed(piece, error))
            return
        self._results.put(Rows(piece, at, events))

    def _events(self, piece: Piece, at: Timestamp) -> list[bytes]:
        if isinstance(piece, FoundEvents):
            return list(piece.events)
        return self._reader.deletes(piece, at) if isinstance(piece, KeyCheck) else self._reader.events(piece, at)

    def _take(self, result: Rows | _Failed) -> None:
        del self._under_way[id(result.piece)]
        if isinstance(result, Rows):
            self._backoff.progressed()
            self._ready.append(result)
            self._pause(self._throttle.debt(len(result.events)))
            return
        if not isinstance(result.error, Exception):
            raise result.error
        if classify(result.error).outcome not in (Outcome.RETRY, Outcome.RESUME):
            raise result.error
        pause = self._backoff.failed()
        if pause is None:
            raise result.error
        self._pause(pause)
        self._again.append(result.piece)

    def _pause(self, seconds: float) -> None:
        """Order nothing for some time; the producer's thread never sleeps here, it has a lease to keep."""
        self._not_before = max(self._not_before, time.monotonic() + seconds)
