"""Samples: some of the engine's events read from the server's own stream too, before they are handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tailrace.capture.source.source import Start
from tailrace.driver import token_of
from tailrace.event import EventStream
from tailrace.logs import get_logger
from tailrace.proof import MARK, Comparator, Comparison, TrustLedger

_log: Final = get_logger("tailrace.capture")
SAMPLE: Final = 100
"""Events that are compared together: opening a stream for each alone would cost the server more than it saves."""
_BATCHES_FOR_A_SAMPLE: Final = 20


class Sampler:
    """Compares one in so many events of a stream."""

    def __init__(
        self, server: Callable[[Start], EventStream], ledger: TrustLedger, one_in: int, *, looks_up: bool
    ) -> None:
        """`server` opens the server's own stream, for a few events; one in 0 events is none."""
        self._open = server
        self._ledger = ledger
        self._one_in = one_in
        self._looks_up = looks_up
        self._unsampled = 0

    def finds_difference(self, start: Start, batch: Sequence[bytes]) -> bool:
        """Compare the first events of a batch that begins behind `start`, when a sample is due."""
        if not self._is_due(batch) or (start.token is None and start.time is None):
            return False
        events = batch[:SAMPLE]
        self._unsampled = max(0, self._unsampled - len(events) * self._one_in)
        try:
            stream = self._open(start)
            try:
                server = _first_events(stream, len(events))
            finally:
                stream.close()
        except Exception as error:
            _log.warning("sample_failed", error=repr(error))
            return False
        found = list(_sampled(server, events, Comparator(looks_up=self._looks_up)))
        self._ledger.note(found)
        return not all(each.is_same for each in found)

    def _is_due(self, events: Sequence[bytes]) -> bool:
        if not self._one_in or not events:
            return False
        self._unsampled += len(events)
        return self._unsampled >= self._one_in * SAMPLE


def _first_events(stream: EventStream, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _, batch in zip(range(_BATCHES_FOR_A_SAMPLE), stream.batches(), strict=False):
        found += batch.events
        if len(found) >= count:
            break
    return found[:count]


def _sampled(server: Sequence[bytes], engine: Sequence[bytes], comparator: Comparator) -> Iterator[Comparison]:
    """Compare event by event, up to the first difference: what follows it may be moved by it."""
    for left, right in zip(server, engine, strict=False):
        comparison = comparator.pair(left, right)
        yield comparison
        if not comparison.is_same:
            if token_of(left) != token_of(right):  # one of them may be missing on the other side
                yield Comparison(MARK, token_of(left), token_of(right), False)
            return
