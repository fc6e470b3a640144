"""History that is lost again while a gap is being closed, on a real server whose oplog rolls over meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from capture_harness import Harness, documents_of
from tailrace.capture.positions import open_store
from tailrace.capture.producer.state_document import full_state
from tailrace.capture.recovery.gaps import GapLedger, GapState
from tailrace.settings import CaptureSettings
from tailrace.stand import ReplicaSet


def test_a_gap_that_grows_is_closed_at_last_and_every_turn_shows(
    start_mongodb: Callable[..., ReplicaSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica_set = start_mongodb(oplog_mb=1)
    with replica_set.client() as client:
        harness = Harness(client, tmp_path, ["shop.orders"], options={"lease_seconds": 300.0})
        client.shop.orders.insert_many([{"_id": key} for key in range(100)])
        harness.run_until_idle()
        client.shop.orders.delete_many({"_id": {"$lt": 10}})
        replica_set.roll_over_oplog()
        shown, pauses = [], []

        def lose_again(point: str) -> None:
            """Let the server forget the new beginning before it is read from, two times."""
            if point != "recovery-begun":
                return
            shown.append(full_state(producer.status, CaptureSettings(), [])["recovery"]["turn"])
            if len(shown) < 3:
                client.shop.orders.delete_one({"_id": 10 + len(shown)})
                client.shop.orders.insert_one({"_id": f"new {len(shown)}"})
                replica_set.roll_over_oplog()

        producer = harness.producer(lose_again, stop_when_idle=True)
        back_off = producer._back_off

        def note_pause(seconds: float) -> None:
            pauses.append((seconds, full_state(producer.status, CaptureSettings(), [])["recovery"]["pause_seconds"]))
            back_off(seconds)

        monkeypatch.setattr(producer, "_back_off", note_pause)
        with capture_logs() as logged:
            producer.run()
        told = [each for each in logged if each["event"].startswith("history_lost") and each["log_level"] == "warning"]
        turns = [(each["event"], each["turn"]) for each in told]
        assert turns == [("history_lost", 1), ("history_lost_again", 2), ("history_lost_again", 3)]
        assert shown == [1, 2, 3]
        assert pauses == [(0.0, 0.0), (0.1, 0.1), (0.2, 0.2)]
        assert harness.state(by_version=True) == documents_of(client.shop.orders)
    with open_store(f"file:{tmp_path / 'positions'}") as store:
        (gap,) = GapLedger(store.cells, "orders").all()
    assert (gap.state, gap.turns, gap.deletes) == (GapState.CLOSED, 3, 12)
    assert len({gap.lost_token, *gap.lost_again}) == 3
    assert producer.status.errors() == {"mongodb-286": 3}
