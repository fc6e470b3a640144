"""Positions, leases and gaps as version 0.1.0 left them, in the tables, documents, keys and records that it made.

The files in `version_0_1_0` were written by that version: a stream `orders` whose holder died with its lease and left a
gap open, and a stream `payments` that was stopped.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import bson
import psycopg
import pymongo
import pytest
import redis
from bson import Timestamp
from confluent_kafka import Producer
from pymongo.database import Database

from capture_harness import Harness, documents_of
from tailrace.capture.positions import Counts, PositionStore, open_store
from tailrace.capture.recovery.gaps import GapLedger, GapState
from tailrace.errors import LeaseHeld

WRITTEN = Path(__file__).parent / "version_0_1_0"
OLD_TABLES = (
    "CREATE TABLE IF NOT EXISTS tailrace_positions (name text PRIMARY KEY, cell text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS tailrace_position_changes"
    " (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, change text NOT NULL)",
    "CREATE INDEX IF NOT EXISTS tailrace_position_changes_by_name ON tailrace_position_changes (name, id)",
)


def cells() -> dict[str, str]:
    return {unquote(file.name.removesuffix(".position.json")): file.read_text() for file in WRITTEN.glob("*.json")}


def changes(name: str) -> list[str]:
    file = WRITTEN / f"{name}.history.jsonl"
    return file.read_text().splitlines() if file.exists() else []


def into_files(url: str) -> None:
    shutil.copytree(WRITTEN, url.removeprefix("file:"))


def into_postgresql(url: str) -> None:
    with psycopg.connect(url) as connection:
        for statement in OLD_TABLES:
            connection.execute(statement.encode())
        for name, cell in cells().items():
            connection.execute("INSERT INTO tailrace_positions VALUES (%s, %s)", (name, cell))
            for change in changes(name):
                query = "INSERT INTO tailrace_position_changes (name, change) VALUES (%s, %s)"
                connection.execute(query, (name, change))


def into_mongodb(url: str) -> None:
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database()
        for name, cell in cells().items():
            notes = [
                {"_id": {"name": name, "number": number}, "change": change}
                for number, change in enumerate(changes(name), 1)
            ]
            database["positions"].insert_one({"_id": name, "cell": cell} | ({"note": notes[-1]} if notes else {}))
            if notes:
                database["position_changes"].insert_many(notes)


def into_kafka(url: str) -> None:
    parts = urlsplit(url)
    with open_store(url) as store:
        store.names()  # makes the topic
    producer = Producer({"bootstrap.servers": parts.netloc, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    for name, cell in cells().items():
        producer.produce(parts.path.strip("/"), cell, f"position/{name}", partition=0)
        for number, change in enumerate(changes(name)):
            producer.produce(parts.path.strip("/"), change, f"change/{name}/{number}", partition=0)
    producer.commit_transaction(30)


def into_redis(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        for name, cell in cells().items():
            client.set("{tailrace}:position:" + name, cell)
            client.sadd("{tailrace}:positions", name)
            for change in changes(name):
                client.lpush("{tailrace}:position-changes:" + name, change)


PUT: dict[str, Callable[[str], None]] = {
    "file": into_files,
    "postgresql": into_postgresql,
    "mongodb": into_mongodb,
    "kafka": into_kafka,
    "redis": into_redis,
}


@pytest.fixture
def old_url(store_url: str) -> str:
    PUT[urlsplit(store_url).scheme](store_url)
    return store_url


def test_what_version_0_1_0_kept_is_gone_on_with(old_url: str) -> None:
    now = 0.0
    with open_store(old_url) as opened:
        store = PositionStore(opened.cells, lease_clock=lambda: now)
        assert store.names() == ["orders", "payments"]
        before = store.load("orders")
        assert before is not None
        assert before.cluster_time == Timestamp(1_700_000_100, 1)
        assert before.counts == Counts(50, 10_000, 20, 1)
        assert before.shards == {"rs0": bson.encode({"_data": "826553F100000000012B0229296E04"})}
        assert [change.what for change in store.history("orders")] == ["moved", "acquired"]
        assert [gap.reason for gap in GapLedger(store.cells, "orders").all()] == ["mongodb-286"]
        with pytest.raises(LeaseHeld):  # when it was written is not known: it is watched for its whole length
            store.acquire("orders", "host/1")
        now = 15.0
        lease = store.acquire("orders", "host/1")
        assert lease.epoch == 2
        store.release(store.save(before, lease))
        GapLedger(store.cells, "orders").record("mongodb-286", before, lost_token="82AC")
        assert store.acquire("payments", "host/1").epoch == 2
        assert [change.what for change in store.history("orders", 3)] == ["released", "taken-over", "moved"]


@pytest.mark.parametrize("store_url", ["postgresql", "mongodb", "redis"], indirect=True)
def test_version_0_1_0_still_writing_is_not_taken_for_silent(old_url: str) -> None:
    """It renews its lease without the time of the store, over a cell that has one: a rollback of an upgrade."""
    with open_store(old_url) as store:
        lease = store.acquire("payments", "host/1", seconds=0.001)
        cell = json.loads(store.cells.read("payments") or b"")
        renewed = json.dumps({**cell, "counter": cell["counter"] + 1, "seconds": 600.0})
        write_as_0_1_0(old_url, "payments", renewed)
        with open_store(old_url) as other, pytest.raises(LeaseHeld) as refusal:
            other.acquire("payments", "host/2")
        assert refusal.value.retry_after == 600
        assert store.renew(lease).epoch == lease.epoch


def write_as_0_1_0(url: str, name: str, cell: str) -> None:
    if url.startswith("postgresql:"):
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE tailrace_positions SET cell = %s WHERE name = %s", (cell, name))
    elif url.startswith("mongodb:"):
        with pymongo.MongoClient[dict[str, Any]](url) as client:
            client.get_default_database()["positions"].update_one({"_id": name}, {"$set": {"cell": cell}})
    else:
        with redis.Redis.from_url(url) as client:
            client.set("{tailrace}:position:" + name, cell)


def test_a_cell_is_read_by_version_0_1_0_too(tmp_path: Path) -> None:
    """Its fields are the same, so that a rolling update may be taken back."""
    old = json.loads((WRITTEN / "orders.position.json").read_text())
    with open_store(f"file:{tmp_path}") as store:
        store.save(store_position(old), store.acquire("orders", "host/1"))
        new = json.loads(store.cells.read("orders") or b"")
    assert new.keys() == old.keys()
    assert new["position"].keys() == old["position"].keys()


def store_position(cell: dict[str, Any]) -> Any:
    from tailrace.capture.positions import Position

    return Position.from_json(cell["position"])


@pytest.mark.parametrize("stream", ["orders", "payments"])
def test_a_producer_goes_on_with_what_version_0_1_0_left(database: Database[Any], tmp_path: Path, stream: str) -> None:
    """The gap that one of them has is closed; the other one's position is before the whole history of the server."""
    into_files(f"file:{tmp_path / 'positions'}")
    database.orders.insert_many([{"_id": key} for key in range(20)])
    harness = Harness(database.client, tmp_path, [f"{database.name}.orders"], options={"name": stream})
    producer = harness.run_until_idle()
    assert harness.state() == documents_of(database.orders)
    with open_store(f"file:{tmp_path / 'positions'}") as store:
        held, gaps = store.load(stream), GapLedger(store.cells, stream).all()
    assert held is not None
    assert held.counts.events <= producer.delivered  # rows of a snapshot are counted with the next position
    assert producer.delivered >= 20
    assert [gap.state for gap in gaps] == ([GapState.CLOSED] if stream == "orders" else [])
    database.orders.insert_one({"_id": 20})
    harness.run_until_idle()
    assert harness.state() == documents_of(database.orders)
