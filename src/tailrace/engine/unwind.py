"""Second stage: a committed transaction becomes its operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace import raw
from tailrace.engine.event import Change
from tailrace.engine.match import Relevance, Relevant
from tailrace.oplog import transactions
from tailrace.oplog.entry import OplogEntry
from tailrace.oplog.transactions import EntryAt


class Unwind:
    """Gives every operation of interest the time of its commit and its number in the transaction."""

    def __init__(
        self,
        matches: Iterable[tuple[OplogEntry, Relevance] | None],
        relevant: Relevant,
        entry_at: EntryAt,
    ) -> None:
        self._matches = matches
        self._relevant = relevant
        self._entry_at = entry_at

    def __iter__(self) -> Iterator[Change | None]:
        for match in self._matches:
            if match is None:
                yield None
                continue
            entry, relevance = match
            if relevance is Relevance.COMMIT:
                yield from self._operations(entry)
            else:
                time = entry.time
                yield Change(entry, time, entry.wall, logged_at=time)

    def _operations(self, commit: OplogEntry) -> Iterator[Change]:
        time, wall, session = commit.time, commit.wall, session_elements(commit)
        for found in transactions.operations(commit, self._entry_at):
            operation = found.operation
            if self._relevant.operation(operation, operation.op):
                yield Change(operation, time, wall, session, found.number, found.logged_at, found.logged_number)


def session_elements(commit: OplogEntry) -> bytes:
    """Give the elements that every event of a transaction begins with."""
    number, session = commit.txn_number, commit.lsid
    return (raw.element(raw.INT64, b"txnNumber", number) if number is not None else b"") + (
        raw.element(raw.DOCUMENT, b"lsid", session) if session is not None else b""
    )
