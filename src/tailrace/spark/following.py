"""Follow a stream from a position on, over elections, restarts and broken connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tailrace.capture.classifier import classify
from tailrace.capture.source.reader import Quarantine, ReadBatch, StreamEnded, StreamReader
from tailrace.capture.source.source import EventSource, Start
from tailrace.errors import Outcome
from tailrace.retry import Backoff, RetryPolicy
from tailrace.spark.offset import Offset

READ_AHEAD_BYTES = 32 * 1024 * 1024
_POLICY = RetryPolicy(first=0.1, longest=1.0, budget=60.0)
"""How long a server may be away before the query fails; a supervisor then starts it again from its checkpoint."""

_POLL_SECONDS = 1.0
UpToEnd = Callable[[ReadBatch], tuple[list[bytes], bool]]
"""Gives the events of a batch that belong to a range, and whether nothing more of it can come."""


class Following:
    """A reader that opens its stream again after passing errors, behind the last batch it gave."""

    def __init__(self, source: EventSource, start: Offset) -> None:
        assert start.token is not None
        self._source = source
        self._token = start.to_bson()
        self._reader: StreamReader | None = None
        self._outage = Backoff(_POLICY)

    def get(self, timeout: float) -> ReadBatch | None:
        """Give the next batch, or None when there is none in time."""
        try:
            if self._reader is None:
                self._reader = StreamReader(self._source, Start(self._token), Quarantine(), READ_AHEAD_BYTES)
            batch = self._reader.get(timeout)
        except StreamEnded:
            self.close()  # the position is behind the invalidate event now, which startAfter crosses
            return None
        except Exception as error:
            self._recover_from(error)
            return None
        if batch is not None:
            self._outage.progressed()
            self._token = batch.token or self._token
        return batch

    def read(self, up_to_end: UpToEnd) -> Iterator[list[bytes]]:
        """Give the events of a range, until nothing more of it can come; then, or when nobody wants more, close."""
        try:
            is_done = False
            while not is_done:
                batch = self.get(_POLL_SECONDS)
                if batch is not None:
                    events, is_done = up_to_end(batch)
                    if events:
                        yield events
        finally:
            self.close()

    def close(self) -> None:
        """Free the cursor on the server."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _recover_from(self, error: Exception) -> None:
        self.close()
        if classify(error).outcome not in (Outcome.RETRY, Outcome.RESUME):
            raise error
        pause = self._outage.failed()
        if pause is None:
            raise error
        time.sleep(pause)
