"""What goes wrong around a producer: brokers, primaries, networks, disks, databases. Nothing is lost by any of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import PyMongoError

from capture_harness import Harness, run_in_background
from crash_process import empty_disk, fill_disk, start_capture
from fault_proxies import FaultProxy
from tailrace.capture.kafka_client import KafkaAddress
from tailrace.capture.positions import open_store
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.recovery.topic_reader import TopicContents, topics_like
from tailrace.settings import Settings
from tailrace.stand import Kafka, Postgres, ReplicaSet
from waiting import SECONDS, wait_until


class Inserts:
    """Inserts one document after another, numbered; a number that may or may not have arrived is tried again."""

    def __init__(self, collection: Any, pause: float = 0.002, text: str = "") -> None:
        self._collection = collection
        self._pause = pause
        self._text = text
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written = 0

    def __enter__(self) -> Inserts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            try:
                document = {"_id": self.written, "text": self._text}
                self._collection.replace_one({"_id": self.written}, document, upsert=True)
                self.written += 1
            except PyMongoError:
                continue


def keys_in_order(keys: list[int]) -> list[int]:
    """The keys by their first arrival."""
    return list(dict.fromkeys(keys))


@pytest.fixture
def harness(database: Database[dict[str, Any]], tmp_path: Path) -> Harness:
    return Harness(database.client, tmp_path, [f"{database.name}.orders"])


# --- MongoDB


def test_a_primary_that_steps_down(start_mongodb: Callable[..., ReplicaSet], tmp_path: Path) -> None:
    replica_set = start_mongodb(nodes=3)
    with replica_set.client(w="majority") as client:
        harness = Harness(client, tmp_path, ["shop.orders"])
        harness.run_until_idle()
        with Inserts(client.shop.orders) as inserts, harness.running() as producer:
            wait_until(lambda: len(harness.delivered) > 50, "the stream runs")
            replica_set.step_down(5)
            before = len(harness.delivered)
            wait_until(lambda: len(harness.delivered) > before + 50, "the stream goes on", 60)
            inserts.__exit__()
            wait_until(lambda: producer.delivered >= inserts.written, "everything is delivered", 60)
    assert keys_in_order([event["documentKey"]["_id"] for event in harness.events()]) == list(range(inserts.written))


@pytest.mark.parametrize("kind", ["change-stream", "oplog"])
def test_connections_that_stay_open_and_carry_nothing(
    mongodb: ReplicaSet,
    database: Database[dict[str, Any]],
    fault_proxy: Callable[[int], FaultProxy],
    tmp_path: Path,
    kind: str,
) -> None:
    proxy = fault_proxy(mongodb.primary.port)
    uri = f"mongodb://{proxy.address}/?directConnection=true&socketTimeoutMS=1500&heartbeatFrequencyMS=500"
    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=3000) as client:
        harness = Harness(client, tmp_path, [f"{database.name}.orders"], kind)
        harness.run_until_idle()
        with Inserts(database.orders) as inserts, harness.running():
            wait_until(lambda: len(harness.delivered) > 20, "the stream runs")
            proxy.black_hole()
            time.sleep(2.5)
            proxy.heal()
            before = len(harness.delivered)
            wait_until(lambda: len(harness.delivered) > before + 20, "the stream goes on", 60)
            inserts.__exit__()
            wait_until(lambda: len({record.key for record in harness.delivered}) == inserts.written, "all arrive", 60)
    assert keys_in_order([event["documentKey"]["_id"] for event in harness.events()]) == list(range(inserts.written))


# --- stores


def test_a_position_database_that_is_restarted(
    database: Database[dict[str, Any]], harness: Harness, start_server: Callable[..., Any]
) -> None:
    server: Postgres = start_server(Postgres)
    harness.store_url = server.dsn
    harness.run_until_idle()
    with Inserts(database.orders) as inserts, harness.running() as producer:
        wait_until(lambda: len(harness.delivered) > 20, "the stream runs")
        server.kill()
        time.sleep(0.7)
        server.restart()
        before = producer.delivered
        wait_until(lambda: producer.delivered > before + 20, "the position moves again", 60)
        inserts.__exit__()
        wait_until(lambda: len({record.key for record in harness.delivered}) == inserts.written, "all arrive")
    assert keys_in_order([event["documentKey"]["_id"] for event in harness.events()]) == list(range(inserts.written))
    with open_store(server.dsn) as store:
        position = store.load("orders")
    assert position is not None
    assert position.counts.events == producer.delivered


# --- Kafka


@contextmanager
def capturing(settings: Settings, client: Any) -> Iterator[Any]:
    with Capture.open(settings, client) as capture:
        capture.producer(stop_when_idle=True).run()  # the first snapshot, of nothing
        with run_in_background(capture.producer()) as producer:
            yield producer


def kafka_settings(mongodb: ReplicaSet, database: Any, servers: str, folder: Path, delivery: str) -> Settings:
    exactly_once = delivery == "exactly-once"
    return Settings.load(
        flags={
            "mongodb.uri": mongodb.uri,
            "capture.name": f"{database.name}-{delivery}",
            "capture.namespaces": (f"{database.name}.orders",),
            "capture.sink": f"kafka://{servers}",
            "capture.topic_prefix": f"{database.name}-{delivery}",
            "capture.delivery": delivery,
            "capture.partitions": 1,
            "capture.position_store": f"kafka://{servers}/positions" if exactly_once else f"file:{folder}",
            "capture.buffer_mb": 1,
            "capture.sink_buffer_mb": 2,
        }
    )


def keys_in_topic(servers: str, prefix: str) -> list[int]:
    address = KafkaAddress(servers)
    found = TopicContents(address, topics_like(address, rf"{prefix}\..*\.orders")).messages()
    return [orjson.loads(message.value or b"")["documentKey"]["_id"] for message in found]


def test_a_broker_that_is_down_for_a_while_and_one_that_is_slow(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], start_server: Callable[..., Any], tmp_path: Path
) -> None:
    with FaultProxy.start() as proxy, ExitStack() as running:
        broker: Kafka = start_server(Kafka, proxy=proxy)
        kinds = {
            delivery: kafka_settings(mongodb, database, broker.proxied_servers, tmp_path, delivery)
            for delivery in ("at-least-once", "exactly-once")
        }
        producers = [running.enter_context(capturing(each, database.client)) for each in kinds.values()]
        inserts = running.enter_context(Inserts(database.orders, text="x" * 2_000))
        wait_until(lambda: all(each.delivered > 50 for each in producers), "the streams run", 60)
        broker.kill()
        time.sleep(2)
        broker.restart()
        before = max(each.delivered for each in producers)
        wait_until(lambda: all(each.delivered > before + 50 for each in producers), "they go on with the broker", 90)
        proxy.throttle(300_000)
        time.sleep(2)
        assert all(each.status.buffered <= 4 * 2**20 for each in producers), "reading waits for the broker"
        proxy.heal()
        inserts.__exit__()
        wait_until(lambda: all(each.delivered >= inserts.written for each in producers), "all is delivered", 90)
        running.close()
        found = {name: keys_in_topic(broker.bootstrap_servers, each.capture.name) for name, each in kinds.items()}
    assert keys_in_order(found["at-least-once"]) == list(range(inserts.written))
    assert found["exactly-once"] == list(range(inserts.written))


@pytest.mark.long
def test_a_broker_that_is_down_for_half_a_minute_loses_nothing_and_takes_no_memory(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], start_server: Callable[..., Any], tmp_path: Path
) -> None:
    """`make crash` runs it. Far more is written in the outage than the buffers of 3 MB hold."""
    broker: Kafka = start_server(Kafka)
    settings = kafka_settings(mongodb, database, broker.bootstrap_servers, tmp_path, "at-least-once")
    flags = {f"capture.{name}": value for name, value in settings.capture.model_dump(exclude_unset=True).items()}
    start_capture({"mongodb.uri": mongodb.uri, **flags}, stop_when_idle=True).join(SECONDS)
    process = start_capture({"mongodb.uri": mongodb.uri, **flags})
    try:
        with Inserts(database.orders, text="x" * 20_000) as inserts, open_store(f"file:{tmp_path}") as store:
            delivered = lambda: (found := store.load(settings.capture.name)) and found.counts.events  # noqa: E731
            wait_until(lambda: (delivered() or 0) > 200, "the stream runs", 120)
            before = resident_mb(process.pid)
            broker.kill()
            down = inserts.written
            time.sleep(30)
            wait_until(lambda: inserts.written > down + 1_000, "20 MB are written in the outage", 120)
            grown = resident_mb(process.pid) - before
            broker.restart()
            inserts.__exit__()
            wait_until(lambda: (delivered() or 0) >= inserts.written, "everything is delivered", 240)
            found = keys_in_order(keys_in_topic(broker.bootstrap_servers, settings.capture.topic_prefix))
    finally:
        process.kill()
    assert found == list(range(inserts.written))
    assert grown < 60, "what is buffered is bounded"


def resident_mb(pid: int | None) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


def test_a_full_disk_stops_the_position_and_nothing_else_for_good(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    settings = kafka_settings(mongodb, database, kafka.bootstrap_servers, tmp_path, "at-least-once")
    flags = {f"capture.{name}": value for name, value in settings.capture.model_dump(exclude_unset=True).items()}
    start_capture({"mongodb.uri": mongodb.uri, **flags}, stop_when_idle=True).join(SECONDS)
    process = start_capture({"mongodb.uri": mongodb.uri, **flags})
    try:
        with Inserts(database.orders) as inserts, open_store(f"file:{tmp_path}") as store:
            position = lambda: store.load(settings.capture.name)  # noqa: E731
            wait_until(lambda: (found := position()) and found.counts.events > 50, "the stream runs", 60)
            fill_disk(process)
            time.sleep(1.0)
            stuck = position()
            time.sleep(0.5)
            assert position() == stuck
            empty_disk(process)
            wait_until(lambda: position() != stuck, "the position moves again")
            inserts.__exit__()
            wait_until(
                lambda: keys_in_order(keys_of(kafka, settings)) == list(range(inserts.written)), "all arrive", 60
            )
    finally:
        process.kill()


def keys_of(kafka: Kafka, settings: Settings) -> list[int]:
    return keys_in_topic(kafka.bootstrap_servers, settings.capture.topic_prefix)
