"""Compare for a while, and hand nothing out: what `tailrace engine prove` and a gateway do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tailrace.event import EventStream
from tailrace.proof.beside import Beside
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
