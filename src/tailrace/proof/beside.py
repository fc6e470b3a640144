"""Read the engine's stream beside the server's: after each batch of the server's, as far as that came."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from tailrace.errors import TailraceError
from tailrace.event import EventBatch, EventStream
from tailrace.logs import get_logger
from tailrace.proof.comparator import Comparator
from tailrace.proof.ledger import TrustLedger

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
