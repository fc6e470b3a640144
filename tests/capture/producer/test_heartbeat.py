"""Marks in the source that come back through the stream, or are missed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bson import Timestamp
from pymongo.database import Database

from capture_harness import Harness
from tailrace.capture.positions import open_store
from tailrace.capture.producer.heartbeat import Heartbeat
from tailrace.capture.producer.parts import selection_of
from tailrace.capture.recovery.gaps import GapLedger
from tailrace.errors import SettingsError
from tailrace.monitor import State
from tailrace.settings import CaptureSettings
from tailrace.stand import ReplicaSet
from waiting import wait_until


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


def test_marks_of_a_process_whose_clock_was_ahead_hide_no_later_ones(
    database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    harness = Harness(
        database.client,
        tmp_path,
        [f"{database.name}.orders"],
        selection={"heartbeat": f"{database.name}.heartbeats"},
        options={"heartbeat_seconds": 0.1},
    )
    ahead = 10**15
    with harness.running() as producer:
        wait_until(lambda: producer.status.heartbeat and producer.status.heartbeat.observed, "a mark came back")
        database.heartbeats.update_one({"_id": "orders"}, {"$set": {"number": ahead}})
        wait_until(lambda: producer.status.heartbeat and producer.status.heartbeat.observed > ahead, "another one")


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
    heartbeat = Heartbeat(database.client, f"{database.name}.heartbeats", "orders", 600)
    with heartbeat.writing():
        wait_until(lambda: heartbeat.lost(Timestamp(2**32 - 1, 1)), "the mark is written")
        assert heartbeat.lost(Timestamp(1, 1)) is None


@pytest.mark.parametrize("wrong", [{"pipeline": '[{"$match": {}}]'}, {"scope": "database"}])
def test_a_stream_that_might_hide_marks_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="heartbeats need"):
        selection_of(CaptureSettings(heartbeat_seconds=5, **wrong))  # type: ignore[arg-type]


def outlive_the_oplog(replica_set: ReplicaSet, folder: Path) -> None:
    """Roll the oplog over behind the position of a running stream, and see that the position is not left behind."""

    def position() -> Timestamp | None:
        with open_store(f"file:{folder / 'positions'}") as store:
            found = store.load("orders")
        return found and found.cluster_time

    wait_until(position, "there is a position")
    began = position()
    left = replica_set.roll_over_oplog(past=began)
    wait_until(lambda: (position() or left) > left, "the position moves although nothing matches")


@pytest.mark.parametrize("with_marks", [False, True])
@pytest.mark.parametrize("kind", ["change-stream", "oplog"])
def test_a_stream_that_matches_nothing_outlives_its_oplog(
    start_mongodb: Callable[..., ReplicaSet], tmp_path: Path, kind: str, with_marks: bool
) -> None:
    """The position moves with empty batches alone, or with marks that come back: also over a restart no gap opens."""
    replica_set = start_mongodb(oplog_mb=1)
    selection, options = ({"heartbeat": "shop.marks"}, {"heartbeat_seconds": 0.1}) if with_marks else ({}, {})
    with replica_set.client() as client:
        client.shop.orders.insert_one({"_id": 0})
        harness = Harness(client, tmp_path, ["shop.orders"], kind, selection=selection, options=options)
        for number in (1, 2):
            with harness.running():
                outlive_the_oplog(replica_set, tmp_path)
            client.shop.orders.insert_one({"_id": number})
        harness.run_until_idle()
        assert [event["documentKey"]["_id"] for event in harness.events()] == [0, 1, 2]
    with open_store(f"file:{tmp_path / 'positions'}") as store:
        assert GapLedger(store.cells, "orders").all() == []
