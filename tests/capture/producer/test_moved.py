"""A producer that goes on elsewhere: another machine and folder, the same store and topics."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from pymongo.database import Database

from crash_process import start_capture
from tailrace.capture.kafka_client import KafkaAddress
from tailrace.capture.positions import open_store
from tailrace.capture.recovery.topic_reader import TopicContents, topics_like
from tailrace.stand import Kafka, ReplicaSet
from waiting import SECONDS, wait_until


def keys_in_topic(kafka: Kafka, prefix: str) -> list[int]:
    address = KafkaAddress(kafka.bootstrap_servers)
    found = TopicContents(address, topics_like(address, rf"{prefix}\..*\.orders")).messages()
    return [orjson.loads(message.value or b"")["documentKey"]["_id"] for message in found]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_producer_that_moves_to_another_machine_goes_on(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], kafka: Kafka, tmp_path: Path, delivery: str
) -> None:
    """The first one is killed with records under way; nobody there can tell the second one that it is dead."""
    name = f"moved-{database.name}-{delivery}-{tmp_path.parent.name[-6:]}"
    flags = {
        "mongodb.uri": mongodb.uri,
        "capture.name": name,
        "capture.namespaces": (f"{database.name}.orders",),
        "capture.sink": f"kafka://{kafka.bootstrap_servers}",
        "capture.topic_prefix": name,
        "capture.delivery": delivery,
        "capture.position_store": f"kafka://{kafka.bootstrap_servers}/{name}-positions",
        "capture.lease_seconds": 3.0,
    }
    database.orders.insert_many([{"_id": number} for number in range(50)])
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
    # The snapshot and its rows have come through, and the next records are with the broker when it dies.
    start_capture(flags, stop_when_idle=True, machine="here/1/1", folder=folders[0]).join(SECONDS)
    first = start_capture(flags, ("added", 3), machine="here/1/1", folder=folders[0])
    for number in range(50, 100):
        database.orders.insert_one({"_id": number})
    first.join(SECONDS)
    assert first.exitcode == -9
    database.orders.insert_many([{"_id": number} for number in range(100, 110)])
    second = start_capture(flags, machine="there/2/1", folder=folders[1])
    try:
        wait_until(lambda: set(keys_in_topic(kafka, name)) == set(range(110)), "all of it", 60)
    finally:
        second.terminate()
        second.join(SECONDS)
    times = Counter(keys_in_topic(kafka, name))
    if delivery == "exactly-once":
        assert set(times.values()) == {1}
    assert [times[number] for number in range(50)] == [1] * 50, "no second snapshot"
    with open_store(flags["capture.position_store"]) as store:
        acquired = [change.who for change in store.history(name) if change.what in ("acquired", "taken-over")]
    assert [who.partition("/")[0] for who in acquired] == ["there", "here", "here"]


def test_a_folder_that_moves_along_keeps_position_keys_and_dead_letters(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    """Settings with relative paths, copied to another place on another machine: no second snapshot, no gap."""
    here, there, elsewhere = tmp_path / "here", tmp_path / "there", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "tailrace.toml").write_text(
        f"""
        [mongodb]
        uri = "{mongodb.uri}"
        [capture]
        name = "orders"
        namespaces = ["{database.name}.orders"]
        sink = "file:events.jsonl"
        position_store = "file:positions"
        inventory = "file:keys.sqlite"
        dead_letters = "file:dead.jsonl"
        lease_seconds = 3.0
        """
    )
    database.orders.insert_many([{"_id": number} for number in range(20)])
    first = start_capture({}, ("after-save", 3), file=here / "tailrace.toml", machine="here/1/1", folder=here)
    for number in range(20, 40):
        database.orders.insert_one({"_id": number})
    first.join(SECONDS)
    assert first.exitcode == -9
    here.rename(there)
    run = {"stop_when_idle": True, "file": there / "tailrace.toml", "machine": "there/2/1", "folder": elsewhere}
    second = start_capture({}, **run)
    second.join(SECONDS)
    assert second.exitcode == 0
    lines = [orjson.loads(line) for line in (there / "events.jsonl").read_bytes().splitlines()]
    reads = [line["value"]["documentKey"]["_id"] for line in lines if line["value"]["operationType"] == "read"]
    assert len(reads) == len(set(reads)), "no second snapshot"
    assert {line["value"]["documentKey"]["_id"] for line in lines} == set(range(40))
    assert not list(elsewhere.iterdir())
    with open_store(f"file:{there / 'positions'}") as store:
        assert store.history("orders")[0].what == "released"
