from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.database import Database

from capture_harness import Harness, documents_of, repeated
from tailrace.capture.formats import make_format
from tailrace.capture.positions import open_store, this_process
from tailrace.capture.producer.control import FirstStep
from tailrace.capture.recovery.gaps import GapLedger, GapState
from tailrace.capture.recovery.inventory import NoInventory
from tailrace.capture.source.source import Scope
from tailrace.errors import GapOpen, InventoryMissing, LeaseHeld, StreamFatal
from tailrace.monitor import State
from tailrace.stand import Postgres, ReplicaSet
from tailrace.token import ResumeToken
from waiting import SECONDS, wait_until

KINDS = pytest.mark.parametrize("kind", ["change-stream", "oplog"])


@pytest.fixture
def harness(database: Database[dict[str, Any]], tmp_path: Path) -> Harness:
    return Harness(database.client, tmp_path, [f"{database.name}.orders"], selection={"full_document": "updateLookup"})


def writer(collection: Any, seed: int = 1, keys: int = 600) -> AbstractContextManager[None]:
    """Random writes to few documents, as long as the block runs."""
    chance = random.Random(seed)

    def write() -> None:
        key, kind = chance.randrange(keys), chance.random()
        if kind < 0.4:
            collection.replace_one({"_id": key}, {"v": chance.random()}, upsert=True)
        elif kind < 0.7:
            collection.delete_one({"_id": key})
        else:
            collection.update_one({"_id": key}, {"$set": {"w": chance.random()}}, upsert=True)

    return repeated(write)


@KINDS
def test_a_first_run_under_writes_ends_equal_to_the_source(
    database: Database[dict[str, Any]], harness: Harness, kind: str
) -> None:
    harness.kind = kind
    orders = database.orders
    orders.insert_many([{"_id": key, "v": 0, "pad": "x" * 300} for key in range(2_000)])
    with writer(orders), harness.running(chunk_bytes=40_000, snapshot_workers=3) as producer:
        wait_until(lambda: producer.status.snapshot and not producer.backfilling, "the snapshot is finished")
    harness.run_until_idle()
    expected = documents_of(orders)
    assert harness.state() == expected
    assert harness.state(by_version=True) == expected
    assert sum(record.operation == "read" for record in harness.delivered) >= 1_400


def test_a_restart_goes_on_at_the_position_without_a_snapshot(
    database: Database[dict[str, Any]], harness: Harness
) -> None:
    database.orders.insert_one({"_id": 1})
    harness.run_until_idle()
    database.orders.insert_many([{"_id": 2}, {"_id": 3}])
    harness.run_until_idle()
    harness.run_until_idle()
    seen = [(event["operationType"], event["documentKey"]["_id"]) for event in harness.events()]
    assert seen == [("read", 1), ("insert", 2), ("insert", 3)]


def test_the_rows_of_a_snapshot_count(database: Database[dict[str, Any]], harness: Harness) -> None:
    """Also when nothing comes behind them that moves the position."""
    database.orders.insert_many([{"_id": key} for key in range(10)])
    harness.selection["max_await_ms"] = 1_500
    producer = harness.run_until_idle()
    with open_store(f"file:{harness.folder / 'positions'}") as store:
        position = store.load("orders")
    assert position is not None
    assert position.counts.events == producer.delivered == 10


def test_the_position_of_a_filtered_stream_moves_while_nothing_is_delivered(
    database: Database[dict[str, Any]], harness: Harness
) -> None:
    harness.run_until_idle()
    with open_store(f"file:{harness.folder / 'positions'}") as store:
        before = store.load("orders")
        with harness.running() as producer:
            for number in range(3):
                database.other.insert_one({"_id": number})
                target = database.client.admin.command("ping")["operationTime"]
                wait_until(
                    lambda: producer.status.position and producer.status.position.cluster_time >= target,  # noqa: B023
                    "an empty batch moves the position",
                )
            assert producer.status.liveness().state in (State.IDLE, State.LIVE)
        after = store.load("orders")
    assert before is not None
    assert after is not None
    assert after.cluster_time > before.cluster_time
    assert harness.delivered == []


@KINDS
def test_a_changed_pipeline_starts_at_the_time_and_delivers_nothing_twice(
    database: Database[dict[str, Any]], harness: Harness, kind: str
) -> None:
    harness.kind = kind
    harness.run_until_idle()
    with database.client.start_session() as session, session.start_transaction():
        database.orders.insert_many([{"_id": number} for number in range(5)], session=session)  # all of one time
    harness.run_until_idle()
    harness.selection["pipeline"] = ({"$match": {"documentKey._id": {"$ne": 7}}},)
    database.orders.insert_many([{"_id": number} for number in range(5, 10)])
    harness.run_until_idle()
    assert [event["documentKey"]["_id"] for event in harness.events()] == [0, 1, 2, 3, 4, 5, 6, 8, 9]


@pytest.mark.mongodb("4.2.6")
def test_a_token_that_the_server_does_not_understand_is_replaced_by_its_time(
    database: Database[dict[str, Any]], harness: Harness
) -> None:
    harness.run_until_idle()
    with open_store(f"file:{harness.folder / 'positions'}") as store:
        lease = store.acquire("orders", this_process())
        position = store.load("orders")
        assert position is not None
        newer = ResumeToken.high_water_mark(position.cluster_time, version=2).to_bson()
        store.release(store.save(replace(position, token=newer), lease, reason="as from a newer server"))
    database.orders.insert_one({"_id": 1})
    harness.run_until_idle()
    assert [event["documentKey"]["_id"] for event in harness.events()] == [1]


def test_a_collection_stream_goes_on_behind_its_invalidate(
    database: Database[dict[str, Any]], harness: Harness
) -> None:
    harness.selection["scope"] = Scope.COLLECTION
    database.orders.insert_one({"_id": 1})
    with harness.running():
        wait_until(lambda: len(harness.delivered) == 1, "the snapshot")
        database.orders.drop()
        wait_until(lambda: "invalidate" in [event["operationType"] for event in harness.events()], "the drop")
        database.orders.insert_one({"_id": 2})
        wait_until(lambda: harness.events()[-1]["operationType"] == "insert", "events of the new collection")
    operations = [event["operationType"] for event in harness.events()]
    assert operations == ["read", "drop", "invalidate", "insert"]


def test_an_event_that_cannot_be_converted_is_dead_lettered_and_the_stream_goes_on(
    database: Database[dict[str, Any]], harness: Harness
) -> None:
    harness.format = make_format(f"{__name__}:refuse_bad_events")
    harness.run_until_idle()
    database.orders.insert_many([{"_id": 1}, {"_id": "bad"}, {"_id": 2}])
    harness.run_until_idle()
    assert [event["documentKey"]["_id"] for event in harness.events()] == [1, 2]
    assert [bson.decode(event)["documentKey"]["_id"] for event in harness.aside] == ["bad"]


def refuse_bad_events(event: dict[str, Any]) -> dict[str, Any]:
    if event["documentKey"]["_id"] == "bad":
        raise ValueError("this one not")
    return event


def test_a_slow_sink_holds_reading_back_at_the_limit_and_nothing_is_lost(
    database: Database[dict[str, Any]], harness: Harness
) -> None:
    harness.run_until_idle()
    harness.room = lambda: False
    documents = [{"_id": number, "text": "x" * 5_000} for number in range(2_000)]
    with harness.running(buffer_bytes=1_000_000) as producer:
        database.orders.insert_many(documents)
        wait_until(lambda: producer.status.buffered > 500_000, "the buffer is used")
        assert producer.status.buffered < 7_000_000, "one batch of a reply may lie over the limit, not more"
        harness.room = lambda: True
        wait_until(lambda: len(harness.delivered) == 2_000, "everything is delivered")
    assert [event["documentKey"]["_id"] for event in harness.events()] == list(range(2_000))


@pytest.mark.parametrize(
    "narrowed", [{}, {"scope": Scope.COLLECTION}, {"pipeline": ({"$match": {"ns.coll": "orders"}},)}], ids=str
)
def test_many_events_of_other_collections_are_not_taken_for_the_end(
    database: Database[dict[str, Any]], tmp_path: Path, narrowed: dict[str, Any]
) -> None:
    harness = Harness(database.client, tmp_path, [f"{database.name}.orders"], "oplog", narrowed)
    harness.run_until_idle()
    database.others.insert_many([{"_id": number} for number in range(5_000)])
    database.orders.insert_one({"_id": 1})
    harness.run_until_idle()
    assert [event["documentKey"]["_id"] for event in harness.events()] == [1]


def test_two_producers_of_one_name_do_not_both_run(harness: Harness) -> None:
    with harness.running() as first:
        wait_until(lambda: first.status.position, "the first one runs")
        second = harness.producer(lease_timeout=0.3)
        with pytest.raises(LeaseHeld):
            second.run()


def test_one_that_waited_goes_on_where_the_other_ended(database: Database[dict[str, Any]], harness: Harness) -> None:
    """What it knows of snapshots and gaps it reads after it has the lease, not before."""
    database.orders.insert_many([{"_id": number} for number in range(20)])
    second = harness.producer(stop_when_idle=True)
    with harness.running() as first:
        wait_until(lambda: first.status.snapshot and not first.backfilling, "the first one's snapshot")
        waiting = threading.Thread(target=second.run, daemon=True)
        waiting.start()
        wait_until(waiting.is_alive, "the second one waits")
    waiting.join(SECONDS)
    assert not waiting.is_alive()
    assert len(harness.delivered) == 20, "the snapshot was not taken twice"


def test_a_store_that_is_away_at_the_start_is_waited_for(
    database: Database[dict[str, Any]], harness: Harness, start_server: Callable[..., Any]
) -> None:
    server: Postgres = start_server(Postgres)
    harness.store_url = server.dsn
    server.stop()
    database.orders.insert_one({"_id": 1})
    with harness.running():
        server.restart()
        wait_until(lambda: len(harness.delivered) == 1, "it begins when the store is there", 60)


def test_the_parts_of_a_sliced_stream_are_the_whole(database: Database[dict[str, Any]], tmp_path: Path) -> None:
    from tailrace.capture.source.namespaces import Slice

    database.orders.insert_many([{"_id": number} for number in range(200)])
    parts = []
    for number in (1, 2, 3):
        part = Harness(database.client, tmp_path / str(number), [f"{database.name}.orders"])
        part.selection["slice"] = Slice(number, 3)
        part.run_until_idle()
        parts.append(part)
    database.orders.insert_many([{"_id": number} for number in range(200, 400)])
    database.orders.update_many({}, {"$set": {"v": 1}})
    for part in parts:
        part.run_until_idle()
    keys = [{event["documentKey"]["_id"] for event in part.events()} for part in parts]
    assert set.union(*keys) == set(range(400))
    assert sum(map(len, keys)) == 400
    assert sum(len(part.delivered) for part in parts) == 200 + 200 + 400


# --- lost history


@pytest.fixture
def small_oplog(start_mongodb: Callable[..., ReplicaSet]) -> ReplicaSet:
    return start_mongodb(oplog_mb=1)


def lose_history(replica_set: ReplicaSet, client: Any) -> None:
    """Inserts, updates and deletes that leave the oplog before anyone reads them."""
    client.shop.orders.delete_many({"_id": {"$lt": 100}})
    client.shop.orders.insert_many([{"_id": -number} for number in range(1, 50)])
    client.shop.orders.update_many({"_id": {"$gte": 250}}, {"$set": {"changed": "in the gap"}})
    client.shop.gone.drop()
    replica_set.roll_over_oplog()


@KINDS
def test_lost_history_is_recovered_with_its_deletes_and_the_gap_is_in_the_ledger(
    small_oplog: ReplicaSet, tmp_path: Path, kind: str
) -> None:
    with small_oplog.client() as client:
        client.shop.orders.insert_many([{"_id": number} for number in range(300)])
        client.shop.gone.insert_many([{"_id": f"g{number}"} for number in range(20)])
        harness = Harness(client, tmp_path, ["shop"], kind, options={"chunk_bytes": 3_000})
        harness.run_until_idle()
        lose_history(small_oplog, client)
        with writer(client.shop.orders, keys=400):
            states = set()
            with harness.running(hook=lambda _: None) as producer:
                wait_until(lambda: states.add(producer.status.liveness().state) or _closed(harness), "the recovery")
        harness.run_until_idle()
        expected = {**documents_of(client.shop.orders)}
        rebuilt = _state_with_updates(harness, client)
        assert State.RECOVERING in states
        assert rebuilt == set(expected)
        recovered = [event for event in harness.events() if event.get("recovered")]
        assert {event["documentKey"]["_id"] for event in recovered} >= {f"g{number}" for number in range(20)}
    with open_store(f"file:{tmp_path / 'positions'}") as store:
        (gap,) = GapLedger(store.cells, "orders").all()
    assert gap.reason == "mongodb-286"
    assert gap.state is GapState.CLOSED
    assert gap.last_good is not None
    assert gap.first_known is not None
    assert gap.last_good < gap.first_known
    assert gap.deletes == len(recovered)


def _closed(harness: Harness) -> bool:
    with open_store(f"file:{harness.folder / 'positions'}") as store:
        gaps = GapLedger(store.cells, "orders").all()
    return bool(gaps) and not gaps[-1].is_open


def _state_with_updates(harness: Harness, client: Any) -> set[bytes]:
    """The keys that exist in the sink: updates without a document leave a key where it is."""
    keys: set[bytes] = set()
    for record in harness.delivered:
        assert record.key is not None
        (keys.discard if record.operation == "delete" else keys.add)(record.key)
    return keys


def test_a_gap_stays_open_until_a_person_recovers_when_that_is_asked_for(
    small_oplog: ReplicaSet, tmp_path: Path
) -> None:
    with small_oplog.client() as client:
        client.shop.orders.insert_many([{"_id": number} for number in range(300)])
        harness = Harness(client, tmp_path, ["shop"])
        harness.run_until_idle()
        lose_history(small_oplog, client)
        sent: list[str] = []
        for _ in range(3):
            with pytest.raises(GapOpen):
                harness.producer(recover=False, hook=sent.append).run()
        assert sent.count("opened") == 1, "the dead token is sent once and never again, by no process"
        harness.run_until_idle()
        assert _state_with_updates(harness, client) == set(documents_of(client.shop.orders))


def test_without_an_inventory_a_recovery_is_refused_instead_of_passing_over_deletes(
    small_oplog: ReplicaSet, tmp_path: Path
) -> None:
    with small_oplog.client() as client:
        client.shop.orders.insert_one({"_id": 1})
        harness = Harness(client, tmp_path, ["shop"], inventory=NoInventory())
        harness.run_until_idle()
        lose_history(small_oplog, client)
        with pytest.raises(InventoryMissing):
            harness.run_until_idle()


def test_a_start_from_now_is_only_made_by_name_and_leaves_its_gap_in_the_ledger(
    small_oplog: ReplicaSet, tmp_path: Path
) -> None:
    with small_oplog.client() as client:
        client.shop.orders.insert_one({"_id": 1})
        harness = Harness(client, tmp_path, ["shop"])
        harness.run_until_idle()
        lose_history(small_oplog, client)
        harness.run_until_idle(first_step=FirstStep.START_NOW)
        client.shop.orders.insert_one({"_id": "after"})
        harness.run_until_idle()
    assert [event["documentKey"]["_id"] for event in harness.events()] == [1, "after"]
    with open_store(f"file:{tmp_path / 'positions'}") as store:
        (gap,) = GapLedger(store.cells, "orders").all()
    assert gap.state is GapState.ACCEPTED
    assert gap.first_known is not None


def test_an_error_that_nobody_can_mend_ends_the_producer_and_gives_the_lease_back(
    database: Database[dict[str, Any]], harness: Harness
) -> None:
    harness.run_until_idle()

    def fail(point: str) -> None:
        if point == "read":
            raise StreamFatal("no way on")

    with pytest.raises(StreamFatal):
        harness.producer(hook=fail).run()
    with open_store(f"file:{harness.folder / 'positions'}") as store:
        assert store.holder("orders") is None
