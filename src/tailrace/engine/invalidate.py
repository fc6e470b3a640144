"""Fourth stage: some events end the stream, with an `invalidate` event behind them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tailrace import raw
from tailrace.engine.event import Event
from tailrace.engine.scope import Scope, ScopeKind
from tailrace.engine.tokens import id_element
from tailrace.token.resume_token import ResumeToken, TokenData

_ENDING: Final = {
    ScopeKind.COLLECTION: frozenset({"drop", "rename", "dropDatabase"}),
    ScopeKind.DATABASE: frozenset({"dropDatabase"}),
    ScopeKind.CLUSTER: frozenset[str](),
}
_INVALIDATE_TYPE: Final = raw.element(raw.STRING, b"operationType", raw.string(b"invalidate"))


class Invalidate:
    """Puts an `invalidate` behind an event that ends the stream, and ends it.

    A stream started after an invalidate meets the event that caused it once more. That invalidate is
    made again, because the resume stage has to find (and swallow) it, but it does not end the
    stream. Should another ending event come first, from another shard at the same time, its
    invalidate is left out: the client knows already.

    Where the router closes the streams of its shards (`closes` is false), events follow behind an invalidate.
    """

    def __init__(self, scope: Scope, start_after: TokenData | None, *, closes: bool = True) -> None:
        self._closes = closes
        self._ending = _ENDING[scope.kind]
        self._start_after = start_after if start_after and start_after.from_invalidate else None
        self.token: ResumeToken | None = None
        """The token of the invalidate that ended the stream."""

    def __call__(self, events: list[Event], given: list[Event]) -> None:
        """Pass events on up to the one that ends the stream, and its invalidate."""
        if self._ending.isdisjoint([event.operation_type for event in events]):
            given += events
            return
        for event in events:
            given.append(event)
            if event.operation_type in self._ending and self._invalidates(event, given):
                return

    def _invalidates(self, event: Event, given: list[Event]) -> bool:
        """Put the invalidate behind an event, and tell whether the stream ends with it."""
        token = invalidate_token(event)
        is_known = self._start_after is not None and token.decode() == self._start_after
        is_first, self._start_after = self._start_after is None, None
        if is_first or is_known:
            given.append(invalidate_event(event, token))
        if is_first and self._closes:
            self.token = token
        return self.token is not None


def invalidate_token(event: Event) -> ResumeToken:
    """Give the token of the invalidate that an event causes."""
    data = ResumeToken.parse(event.token).decode()
    return ResumeToken.encode(replace(data, from_invalidate=True))


def invalidate_event(event: Event, token: ResumeToken) -> Event:
    """Make the invalidate that an event causes: it has the event's times and nothing else."""
    parts = [id_element(token), _INVALIDATE_TYPE]
    for kind, name, start, end in raw.elements(event.raw):
        if name in (b"clusterTime", b"wallTime"):
            parts.append(raw.element(kind, name, event.raw[start:end]))
    return Event(
        raw=raw.document(*parts),
        cluster_time=event.cluster_time,
        namespace=b"",
        operation_type="invalidate",
    )
