"""Compare for a while, and hand nothing out: what `tailrace engine prove` and a gateway do.

The engine's stream is read beside the server's: after each batch of the server's, as far as that came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tailrace.errors import TailraceError
from tailrace.event import EventBatch, EventStream
from tailrace.logs import get_logger
from tailrace.proof.comparator import Comparator
from tailrace.proof.kind import MARK, Kind
from tailrace.proof.ledger import MARKS, Trust, TrustLedger

S = TypeVar("S")


@dataclass(slots=True)
class Calm:
    """How many events in a row were of kinds that are decided: trusted, or never again."""

    events: int = 0


class Trial:
    """Reads the server's stream from now on, with the engine beside it."""

    def __init__(
        self,
        server: Callable[[S], EventStream],
        engine: Callable[[S], EventStream],
        start: Callable[[bytes | None], S],
        ledger: TrustLedger,
        *,
        looks_up: bool,
        calm: Calm | None = None,
    ) -> None:
        """`server` and `engine` open their streams at what `start` makes of a token; of None it makes now.

        `calm` is given where the trials of several shards count together.
        """
        self._server = server
        self._engine = engine
        self._start = start
        self._ledger = ledger
        self._looks_up = looks_up
        self.failures = 0
        """How often the engine's stream failed."""
        self._calm = calm or Calm()

    def run(
        self,
        seconds: float,
        *,
        is_over: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> float:
        """Compare for so many seconds, or until it is over; gives how long that was."""
        began = clock()
        if self._ledger.trust(MARK) is Trust.UNPROVED:
            self._compare_openings()
        stream = self._server(self._start(None))
        beside = Beside(
            lambda token: self._engine(self._start(token)), self._ledger, looks_up=self._looks_up, begins_now=True
        )
        try:
            for batch in stream.batches():
                beside.follow(batch)
                for event in batch.events:
                    is_open = self._ledger.trust(Kind.of(event)) is Trust.UNPROVED
                    self._calm.events = 0 if is_open else self._calm.events + 1
                if clock() - began >= seconds or is_over():
                    break
        finally:
            self.failures += beside.failures
            beside.close()
            stream.close()
        return clock() - began

    def _compare_openings(self) -> None:
        """Compare the positions of streams that begin now: a busy stream has no others between its events."""
        for _ in range(MARKS):
            comparator = Comparator()
            streams = [open_side(self._start(None)) for open_side in (self._server, self._engine)]
            try:
                server, engine = (next(stream.batches()) for stream in streams)
            finally:
                for stream in streams:
                    stream.close()
            comparator.server([], server.token)
            self._ledger.note(comparator.engine([], engine.token))


_log: Final = get_logger("tailrace.proof")
_SECONDS_TO_FOLLOW: Final = 10.0
_MOST_BYTES: Final = 64 * 1024 * 1024
"""What may wait for the other side; beyond it the engine begins anew behind what the server gave."""


class Beside:
    """The engine on trial: it follows the server's batches, and what it makes of them goes into the ledger.

    Whatever fails on its side is its own affair: the server's events go on.
    """

    def __init__(
        self,
        open_engine: Callable[[bytes | None], EventStream],
        ledger: TrustLedger,
        *,
        looks_up: bool,
        begins_now: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open_engine` opens the engine's stream behind a token; with None where the server's began.

        A server's stream that `begins_now` is followed from its first position on: two streams have two nows.
        """
        self.failures = 0
        """How often the engine's stream could not be opened or read."""
        self._open = open_engine
        self._ledger = ledger
        self._looks_up = looks_up
        self._clock = clock
        self._comparator = Comparator(looks_up=looks_up)
        self._stream: EventStream | None = None
        self._batches: Iterator[Any] = iter(())
        if not begins_now:
            self._begin(None)

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing that either side gave waits for the other."""
        return self._stream is not None and not self._comparator.size

    def follow(self, batch: EventBatch) -> None:
        """Compare a batch of the server's; the engine reads on until it has come as far."""
        if self._stream is None:
            self._begin(batch.token)
            return
        comparator = self._comparator
        self._ledger.note(comparator.server(batch.events, batch.token))
        deadline = self._clock() + _SECONDS_TO_FOLLOW
        try:
            while comparator.engine_time < comparator.server_time and self._clock() < deadline:
                made = next(self._batches, None)
                if made is None:
                    break
                self._ledger.note(comparator.engine(made.events, made.token))
        except Exception as error:
            self._fail(error)
            return
        if comparator.size > _MOST_BYTES:
            _log.warning("engine_too_slow_to_compare", bytes=comparator.size)
            self._begin(batch.token)

    def close(self) -> None:
        """End the engine's stream."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _begin(self, token: bytes | None) -> None:
        self.close()
        self._comparator = Comparator(looks_up=self._looks_up)
        try:
            self._stream = self._open(token)
            self._batches = iter(self._stream.batches())
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        why = error.message if isinstance(error, TailraceError) else repr(error)
        _log.warning("engine_failed_beside_server", error=why)
        self.close()
