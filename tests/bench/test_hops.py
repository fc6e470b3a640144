"""How arrivals are timed: rows of a mirror with more snapshots than its metadata shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench.contestant import ContestantFailed
from bench.hops import IcebergHop, Load

from bench import hops
from tailrace.warehouse.tables.states import SNAPSHOTS_SHOWN, Snapshot

START = datetime(2026, 1, 1, tzinfo=UTC)


class Mirror:
    """A mirror that gets one row in each snapshot, one a second, and shows the newest snapshots."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._snapshots: list[Snapshot] = []
        monkeypatch.setattr(hops, "read_tables", lambda folder: [self._table()])

    def add(self, count: int) -> None:
        for number in range(len(self._snapshots), len(self._snapshots) + count):
            self._snapshots.append(Snapshot(number, START + timedelta(seconds=number), "overwrite", 1, 0))

    def _table(self) -> SimpleNamespace:
        return SimpleNamespace(kind="mirror", snapshots=self._snapshots[-SNAPSHOTS_SHOWN:])


@pytest.fixture
def hop(tmp_path: Path) -> IcebergHop:
    return IcebergHop("tables", [], Load(None, 0, 1), tmp_path)  # type: ignore[arg-type]


def test_rows_are_counted_beyond_the_snapshots_that_are_shown(hop: IcebergHop, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(monkeypatch)
    for _ in range(5):
        mirror.add(60)
        rows = hop._rows()
    assert rows == 300
    begun = [round(START.timestamp() * 1e6) + number * 1_000_000 - 7_000 for number in range(300)]
    assert hop._latencies(40, begun[40:]) == [7_000] * 260


def test_snapshots_that_nobody_saw_end_the_turn(hop: IcebergHop, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(monkeypatch)
    mirror.add(10)
    assert hop._rows() == 10
    mirror.add(SNAPSHOTS_SHOWN)
    with pytest.raises(ContestantFailed, match="between two looks"):
        hop._rows()
