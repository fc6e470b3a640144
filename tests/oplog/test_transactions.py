"""Which entries commit a transaction, and what they commit."""

from __future__ import annotations

import bson
import pytest
from bson.timestamp import Timestamp

from engine.small_oplog import command, entry, operation, shard_of, transaction
from tailrace.engine.recording import RecordedOplog
from tailrace.errors import HistoryLost, OplogEntryInvalid
from tailrace.oplog.entry import OplogEntry
from tailrace.oplog.transactions import inner_operations, is_commit, operations

_COMMIT = {"commitTransaction": 1, "commitTimestamp": Timestamp(100, 3)}


def committed(*entries: bytes) -> list[tuple[int, int, int, int]]:
    """Give `_id`, number, logging increment and logged number of what the last entry commits."""
    oplog = RecordedOplog(shard_of(*entries))
    found = operations(OplogEntry(entries[-1]), lambda time: OplogEntry(oplog.entry_at(time)))
    return [(bson.decode(f.operation.o)["_id"], f.number, f.logged_at & 0xFFFFFFFF, f.logged_number) for f in found]


def test_one_entry_commits_its_operations() -> None:
    assert committed(transaction(1, [operation(1), operation(2)])) == [(1, 0, 1, 0), (2, 1, 1, 1)]


def test_a_chain_is_numbered_through_and_empty_links_do_not_matter() -> None:
    chain = [
        transaction(1, [], partialTxn=True),
        transaction(2, [operation(1), operation(2)], previous=1, partialTxn=True),
        transaction(3, [], previous=2, partialTxn=True),
        transaction(4, [operation(3)], previous=3, count=3),
    ]
    assert committed(*chain) == [(1, 0, 2, 0), (2, 1, 2, 1), (3, 2, 4, 0)]


def test_a_prepared_transaction_is_committed_later() -> None:
    before = {"ts": Timestamp(100, 2), "t": bson.Int64(1)}
    commit = entry(5, "c", "admin.$cmd", _COMMIT, ui=None, prevOpTime=before)
    chain = [
        transaction(1, [operation(1)], partialTxn=True),
        transaction(2, [operation(2)], previous=1, prepare=True),
        commit,
    ]
    assert committed(*chain) == [(1, 0, 1, 0), (2, 1, 2, 0)]


def test_only_commits_count() -> None:
    def judged(raw_entry: bytes) -> bool:
        return is_commit(OplogEntry(raw_entry))

    assert judged(transaction(1, []))
    assert judged(entry(1, "c", "admin.$cmd", _COMMIT))
    assert not judged(transaction(1, [], prepare=True))
    assert not judged(transaction(1, [], partialTxn=True))
    assert not judged(entry(1, "c", "admin.$cmd", {"applyOps": []}))
    assert not judged(command(1, "shop", {"abortTransaction": 1}))


def test_a_chain_whose_beginning_is_gone_is_history_lost() -> None:
    with pytest.raises(HistoryLost):
        committed(transaction(4, [operation(1)], previous=3))


def test_a_chain_that_points_in_a_circle_is_refused() -> None:
    with pytest.raises(OplogEntryInvalid, match="circle"):
        committed(transaction(2, [], previous=3, partialTxn=True), transaction(3, [], previous=2))


def test_operations_must_be_a_list_of_documents() -> None:
    with pytest.raises(OplogEntryInvalid, match="list"):
        list(inner_operations(OplogEntry(entry(1, "c", "admin.$cmd", {"applyOps": 5}))))
    with pytest.raises(OplogEntryInvalid, match="document"):
        list(inner_operations(OplogEntry(entry(1, "c", "admin.$cmd", {"applyOps": [5]}))))
