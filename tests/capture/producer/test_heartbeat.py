"""Marks in the source that come back through the stream, or are missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bson import Timestamp
from pymongo.database import Database

from capture_harness import Harness, wait_until
from tailrace.capture.producer.assembly import selection_of
from tailrace.capture.producer.heartbeat import Heartbeat
from tailrace.errors import SettingsError
from tailrace.monitor import State
from tailrace.settings import CaptureSettings


@pytest.mark.parametrize("kind", ["change-stream", "oplog"])
def test_marks_come_back_through_a_filtered_stream_and_are_not_delivered(
    database: Database[dict[str, Any]], tmp_path: Path, kind: str
) -> None:
    marks = f"{database.name}.heartbeats"
    harness = Harness(
        database.client,
        tmp_path,
        [f"{database.name}.orders"],
        kind,
        selection={"heartbeat": marks},
        options={"heartbeat_seconds": 0.1},
    )
    with harness.running() as producer:
        wait_until(lambda: "came back" in producer.status.liveness().proof, "a mark came back")
        database.orders.insert_one({"_id": marks})
        wait_until(lambda: len(harness.delivered) == 1, "the order, and nothing else")
    assert [event["ns"]["coll"] for event in harness.events()] == ["orders"]
    assert database.heartbeats.count_documents({"_id": "orders"}) == 1


def test_a_mark_that_the_stream_swallowed_is_a_stall(database: Database[dict[str, Any]], tmp_path: Path) -> None:
    """The position moves on, so nothing but the mark shows that events are missing."""
    harness = Harness(
        database.client,
        tmp_path,
        [f"{database.name}.orders"],
        selection={"heartbeat": f"{database.name}.heartbeats", "pipeline": ({"$match": {"ns.coll": "orders"}},)},
        options={"heartbeat_seconds": 0.1},
    )
    with harness.running() as producer:
        wait_until(lambda: producer.status.liveness().state is State.STALLED, "the mark is missed")
        assert "did not give it" in producer.status.liveness().proof


def test_a_mark_is_lost_only_when_the_position_has_passed_it(database: Database[dict[str, Any]]) -> None:
    with Heartbeat(database.client, f"{database.name}.heartbeats", "orders", 600) as heartbeat:
        wait_until(lambda: heartbeat.lost(Timestamp(2**32 - 1, 1)), "the mark is written")
        assert heartbeat.lost(Timestamp(1, 1)) is None


@pytest.mark.parametrize("wrong", [{"pipeline": '[{"$match": {}}]'}, {"scope": "database"}])
def test_a_stream_that_might_hide_marks_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="heartbeats need"):
        selection_of(CaptureSettings(heartbeat_seconds=5, **wrong))  # type: ignore[arg-type]
