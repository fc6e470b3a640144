"""Two faults at once on real servers, with a producer that is killed: nothing is lost, nothing comes back to life."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka.admin import AdminClient
from pymongo.collection import Collection
from pymongo.database import Database

from capture_harness import run_in_background
from crash_process import start_capture
from tailrace.capture.formats import decoder_of
from tailrace.capture.kafka_client import KafkaAddress
from tailrace.capture.positions import open_store
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.recovery.gaps import GapLedger, GapState
from tailrace.capture.recovery.rebuilt_state import RebuiltState
from tailrace.capture.recovery.topic_reader import TopicContents, TopicMessage
from tailrace.fold import id_of, moment_of
from tailrace.raw.cluster_time import ClusterTime
from tailrace.settings import Settings
from tailrace.stand import Kafka, ReplicaSet
from waiting import SECONDS, wait_until

LONG = pytest.mark.long


def into_a_file(uri: str, folder: Path, *namespaces: str) -> dict[str, Any]:
    """The settings of a stream whose every part is a file, with chunks of a few documents."""
    return {
        "mongodb.uri": uri,
        "capture.name": "orders",
        "capture.namespaces": namespaces,
        "capture.format": "canonical",
        "capture.sink": f"file:{folder / 'events.jsonl'}",
        "capture.dead_letters": "stop",
        "capture.inventory": f"{folder / 'keys.sqlite'}",
        "capture.position_store": f"file:{folder / 'positions'}",
        "capture.snapshot_chunk_mb": 0.002,
        "capture.snapshot_workers": 1,
    }


def run_until_idle(flags: dict[str, Any]) -> None:
    process = start_capture(flags, stop_when_idle=True)
    process.join(200)
    assert process.exitcode == 0


def stop_at(flags: dict[str, Any], point: str, times: int = 1) -> Any:
    """Start a producer that stops at a point, and give it then."""
    process = start_capture(flags, stop_at=(point, times))
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", f"it comes to {point}")
    return process


def ids_in(collection: Collection[dict[str, Any]]) -> set[bytes]:
    return {id_of(each) for each in collection.find({}, {"_id": 1})}


def told(folder: Path) -> dict[str, set[bytes]]:
    """Give the documents by collection, as the lines of the file tell them."""
    messages = []
    for line in (folder / "events.jsonl").read_bytes().splitlines():
        value = orjson.loads(line)["value"]
        time = value["clusterTime"]["$timestamp"]
        moment = moment_of(ClusterTime.of(time["t"], time["i"]), value["_id"]["_data"])
        to = value.get("to")
        target = f"{to['db']}.{to['coll']}" if to else None
        messages.append(TopicMessage(b"", orjson.dumps(value), moment, value["operationType"], target))
    state = RebuiltState()
    try:
        state.read(lambda: messages, decoder_of("canonical"))
        return {name: {id_ for id_, _ in state.keys(name)} for name in state.namespaces()}
    finally:
        state.close()


@pytest.mark.parametrize(
    ("point", "end"),
    [
        ("rows", "rename"),
        ("rows", "dropped and made again"),
        pytest.param("rows", "drop", marks=LONG),
        pytest.param("before-chunk-done", "rename", marks=LONG),
        pytest.param("before-chunk-done", "drop", marks=LONG),
        pytest.param("before-chunk-done", "dropped and made again", marks=LONG),
    ],
)
def test_a_collection_that_ends_while_its_snapshot_runs_and_the_producer_is_killed(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path, point: str, end: str
) -> None:
    """The next process knows of the end from the stream alone, and of the snapshot from what is stored.

    `make crash` runs all of them.
    """
    names = ("first", "second", "third")
    database.first.insert_many([{"_id": key} for key in range(200)])
    database.second.insert_many([{"_id": key, "pad": "x" * 50} for key in range(200)])
    flags = into_a_file(mongodb.uri, tmp_path, *(f"{database.name}.{name}" for name in names))
    process = stop_at(flags, point, 2)
    for name in ("first", "second") if point == "rows" else ("second",):
        collection = database[name]
        if end == "rename":
            collection.rename("third", dropTarget=True)
            database.third.delete_one({"_id": 0})
        else:
            collection.drop()
            if end != "drop":
                collection.insert_many([{"_id": key, "life": 2} for key in range(100, 110)])
    os.kill(process.pid, signal.SIGKILL)
    process.join(SECONDS)
    run_until_idle(flags)
    wanted = {f"{database.name}.{name}": ids_in(database[name]) for name in names}
    assert told(tmp_path) == {name: ids for name, ids in wanted.items() if ids}


@LONG
def test_history_that_is_lost_again_while_the_producer_is_killed_in_its_recovery(
    start_mongodb: Callable[..., ReplicaSet], tmp_path: Path
) -> None:
    """`make crash` runs it."""
    replica_set = start_mongodb(oplog_mb=1)
    flags = into_a_file(replica_set.uri, tmp_path, "shop.orders")
    points = ("before-ledger", "after-ledger", "recovery-begun", "opened", "rows", "before-chunk-done")
    with replica_set.client() as client:
        orders = client.shop.orders
        orders.insert_many([{"_id": key} for key in range(200)])
        run_until_idle(flags)
        for number, point in enumerate(points):
            orders.delete_one({"_id": number})
            orders.insert_one({"_id": 1_000 + number})
            replica_set.roll_over_oplog()
            process = start_capture(flags, die_at=(point, 1))
            process.join(200)
            assert process.exitcode == -9, f"it did not come to {point}"
        orders.delete_one({"_id": 100})
        replica_set.roll_over_oplog()
        run_until_idle(flags)
        assert told(tmp_path) == {"shop.orders": ids_in(orders)}
    with open_store(flags["capture.position_store"]) as store:
        (gap,) = GapLedger(store.cells, "orders").all()
    assert gap.state is GapState.CLOSED
    assert gap.deletes >= 1


@LONG
def test_a_dead_letter_whose_topic_is_gone_while_the_broker_restarts(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], start_server: Callable[..., Any], tmp_path: Path
) -> None:
    """The broker makes no topic by itself, and the producer has made this one already. `make crash` runs it."""
    broker = start_server(Kafka, {"auto.create.topics.enable": "false"})
    address, prefix = KafkaAddress(broker.bootstrap_servers), database.name
    settings = Settings.load(
        flags={
            "mongodb.uri": mongodb.uri,
            "capture.name": prefix,
            "capture.namespaces": (f"{prefix}.orders",),
            "capture.sink": f"kafka://{broker.bootstrap_servers}",
            "capture.topic_prefix": prefix,
            "capture.position_store": f"file:{tmp_path / 'positions'}",
            "capture.start": "now",
        }
    )
    like_a_number = {"looks like": {"$numberLong": "7"}}

    def dead_letters() -> list[str]:
        found = TopicContents(address, [f"{prefix}.dead-letters"]).messages()
        return [message.operation for message in found]

    with mongodb.client() as client, Capture.open(settings, client) as capture:
        capture.producer(stop_when_idle=True).run()
        with run_in_background(capture.producer()) as producer:
            database.command("insert", "orders", documents=[{"_id": 0, **like_a_number}, {"_id": 1}])
            wait_until(lambda: producer.delivered >= 1, "the stream runs")
            assert dead_letters() == ["insert"]
            admin = AdminClient(address.config())
            admin.delete_topics([f"{prefix}.dead-letters"])[f"{prefix}.dead-letters"].result(SECONDS)
            broker.kill()
            database.command("insert", "orders", documents=[{"_id": 2, **like_a_number}, {"_id": 3}])
            broker.restart()
            wait_until(lambda: producer.delivered >= 2, "the stream goes on", 280)
    assert dead_letters() == ["insert"]
