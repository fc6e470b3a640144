from __future__ import annotations

from pathlib import Path

from bson.timestamp import Timestamp

from tailrace.capture.positions import Position
from tailrace.capture.positions.open import open_store
from tailrace.capture.recovery.gaps import GapLedger, GapState


def test_a_gap_is_kept_from_its_discovery_to_its_end_and_beyond(tmp_path: Path) -> None:
    with open_store(f"file:{tmp_path}") as store:
        ledger = GapLedger(store.cells, "orders")
        found = ledger.record("mongodb-286", Position(None, Timestamp(10, 2)), lost_token="82AB")
        assert GapLedger(store.cells, "orders").open_gap() == found
        assert ledger.record("mongodb-286", Position(None, Timestamp(99, 9))) == found, "one gap at a time"
        known = ledger.change(found, first_known=Timestamp(20, 1), state=GapState.RECOVERING)
        closed = ledger.close(known, records=5, deletes=2)
        assert ledger.open_gap() is None
        second = ledger.record("mongodb-280", Position(None, Timestamp(30, 1)))
        assert GapLedger(store.cells, "orders").all() == [closed, second]
        assert (second.number, closed.last_good, closed.first_known) == (2, Timestamp(10, 2), Timestamp(20, 1))
        assert GapLedger(store.cells, "other").all() == []


def test_the_ledger_is_not_taken_for_a_position(tmp_path: Path) -> None:
    with open_store(f"file:{tmp_path}") as store:
        GapLedger(store.cells, "orders").record("mongodb-286", None)
        assert store.names() == []
