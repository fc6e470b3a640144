"""Transactions: which entries commit one, and the operations they commit, in order.

A transaction is one `applyOps` entry, or a chain of them linked by `prevOpTime` when it is large: all
but the last are `partialTxn`. The last is the commit, unless it says `prepare`: then the commit is a
later `commitTransaction` entry that points to it. Operations are numbered through the whole chain, the
uninteresting ones included, and all happened at the time of the commit.

By reading, 8.0 logs the inserts of one command as one `applyOps` too. When they are retryable writes it carries their
session, and says by its `multiOpType` that it is no transaction: it stands alone, whatever its `prevOpTime` points to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tailrace import raw
from tailrace.errors import OplogEntryInvalid
from tailrace.oplog.entry import NO_TIME, OplogEntry, command_name


class TransactionOperation(NamedTuple):
    """One operation of a committed transaction, and where it was logged."""

    operation: OplogEntry
    number: int
    """Its number in the whole transaction: `txnOpIndex` of the resume token."""
    logged_at: int
    """The time of the `applyOps` entry it stands in, which the stored pre-image is filed under."""
    logged_number: int
    """Its number in that entry."""


_APPLIED_SEPARATELY: Final = b"\x01\x00\x00\x00"
"""`multiOpType` of an `applyOps` whose operations are writes of their own."""

EntryAt = Callable[[int], OplogEntry]
"""Reads the entry of an exact time; raises when the oplog does not have it any more."""


def is_commit(entry: OplogEntry, *, batches: bool = False) -> bool:
    """Tell whether a command entry makes a transaction visible.

    `applyOps` without a session is no transaction, and change streams of 4.2 to 6.0 show nothing of it: it was a
    client's own command, or an index build's. Since 7.0 it may be a batch of writes (`batches`), which they show.
    """
    command = entry.o
    name = command_name(command)
    if name == b"commitTransaction":
        return True
    return (
        name == b"applyOps"
        and (batches or (entry.txn_number is not None and entry.lsid is not None))
        and not _is_true(command, b"prepare")
        and not _is_true(command, b"partialTxn")
    )


def is_applied_separately(entry: OplogEntry) -> bool:
    """Tell an `applyOps` of retryable writes from a transaction, whose session its events show."""
    return entry.multi_op_type == _APPLIED_SEPARATELY


def operations(commit: OplogEntry, entry_at: EntryAt) -> Iterator[TransactionOperation]:
    """Walk the operations that `commit` makes visible, oldest first.

    One entry is held at a time: the chain is followed back for its times, then read forward.
    """
    last: OplogEntry | None = commit
    times: list[int] = []
    if command_name(commit.o) == b"commitTransaction":
        last = None
        times.append(commit.previous_time)
        earlier = entry_at(times[0]).previous_time
    else:
        earlier = NO_TIME if is_applied_separately(commit) else commit.previous_time
    while earlier != NO_TIME:
        if times and earlier >= times[-1]:
            raise OplogEntryInvalid("a transaction's entries point in a circle", entry=commit.raw)
        times.append(earlier)
        earlier = entry_at(earlier).previous_time
    index = 0
    for entry in _chain(times, entry_at, last):
        logged_at = entry.time
        for logged_index, operation in enumerate(inner_operations(entry)):
            yield TransactionOperation(operation, index, logged_at, logged_index)
            index += 1


def _chain(times: list[int], entry_at: EntryAt, last: OplogEntry | None) -> Iterator[OplogEntry]:
    for time in reversed(times):
        yield entry_at(time)
    if last is not None:
        yield last


def inner_operations(entry: OplogEntry) -> Iterator[OplogEntry]:
    """Walk the operations inside one `applyOps` entry."""
    command = entry.o
    span = raw.find(command, b"applyOps")
    if span is None or span[0] != raw.ARRAY:
        raise OplogEntryInvalid("a transaction's entry has no list of operations", entry=entry.raw)
    for kind, _, start, end in raw.elements(command, span[1]):
        if kind != raw.DOCUMENT:
            raise OplogEntryInvalid("an operation is not a document", entry=entry.raw)
        yield OplogEntry(command[start:end])


def _is_true(command: bytes, name: bytes) -> bool:
    span = raw.find(command, name)
    return span is not None and span[0] == raw.BOOL and command[span[1]] == 1
