"""Second stage: a committed transaction becomes its operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace import raw
from tailrace.engine.event import Change
from tailrace.engine.match import Relevance, Relevant
from tailrace.oplog import transactions
from tailrace.oplog.entry import OplogEntry
from tailrace.oplog.transactions import EntryAt

_BATCH_CHANGES: Final = 1_000
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""How much of a transaction is held at once: one may be larger than memory."""


class Unwind:
    """Gives every operation of interest the time of its commit and its number in the transaction."""

    def __init__(self, relevant: Relevant, entry_at: EntryAt) -> None:
        self._relevant = relevant
        self._entry_at = entry_at

    def __call__(self, matched: list[tuple[OplogEntry, Relevance]]) -> Iterator[list[Change]]:
        """Give the changes of a batch of entries: one list, or several when it commits large transactions."""
        changes: list[Change] = []
        try:
            for entry, relevance in matched:
                if relevance is Relevance.COMMIT:
                    if changes:
                        yield changes
                    changes = []
                    yield from self._operations(entry)
                else:
                    time = entry.time
                    changes.append(Change(entry, time, entry.wall, logged_at=time))
        except Exception:
            yield changes
            raise
        yield changes

    def _operations(self, commit: OplogEntry) -> Iterator[list[Change]]:
        time, wall, session = commit.time, commit.wall, session_elements(commit)
        changes: list[Change] = []
        size = 0
        try:
            for found in transactions.operations(commit, self._entry_at):
                operation = found.operation
                if not self._relevant.operation(operation, operation.op):
                    continue
                changes.append(
                    Change(operation, time, wall, session, found.number, found.logged_at, found.logged_number)
                )
                size += len(operation.raw)
                if len(changes) == _BATCH_CHANGES or size > _BATCH_BYTES:
                    yield changes
                    changes, size = [], 0
        except Exception:
            yield changes
            raise
        yield changes


def session_elements(commit: OplogEntry) -> bytes:
    """Give the elements that every event of a transaction begins with; retryable writes logged together have none."""
    if transactions.is_applied_separately(commit):
        return b""
    number, session = commit.txn_number, commit.lsid
    return (raw.element(raw.INT64, b"txnNumber", number) if number is not None else b"") + (
        raw.element(raw.DOCUMENT, b"lsid", session) if session is not None else b""
    )
