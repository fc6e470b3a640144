"""The tools, each a service that is started again when it ends, with the settings its makers name for safety."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymongo
from bench.peers import DEBEZIUM, HEAP, MONGO_KAFKA, Peer, java

import tailrace
from losses.changes import Change, of_debezium, of_event_json
from losses.positions import InFiles, InTopic, StoredPosition
from nemesis.services import Service
from tailrace.stand.ports import reserve_port

_SECONDS_TO_START = 240
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_STRINGS = "org.apache.kafka.connect.storage.StringConverter"


@dataclass(frozen=True, slots=True)
class Aim:
    """What a tool is to capture, and whereto."""

    uri: str
    servers: str
    database: str
    name: str
    folder: Path


@dataclass
class Tool:
    """A tool under test: how it is run, what it was set to, and how its records are read."""

    title: str
    version: str
    settings: Mapping[str, str]
    launch: Callable[[Aim, Mapping[str, str]], RunningTool]
    read: Callable[[bytes | None, bytes], Change | None] = of_event_json

    def start(self, aim: Aim, more: Mapping[str, str]) -> RunningTool:
        """Start it, with settings for this run alone, and wait until it takes orders, if it does."""
        running = self.launch(aim, {**self.settings, **more})
        running.service.start()
        running.begin()
        return running


@dataclass
class RunningTool:
    """A tool at work."""

    service: Service
    position: StoredPosition
    begin: Callable[[], None] = lambda: None
    """What has to be done once after the first start."""
    failed: Callable[[], str] = lambda: ""
    """Why it has stopped for good and waits for an operator; empty while it works."""
    ports: list[Any] = field(default_factory=list)

    def stop(self) -> None:
        """End it for good."""
        self.service.stop()
        for port in self.ports:
            port.release()


def tailrace_tool(delivery: str, source: str) -> Tool:
    """Our producer."""
    settings = {"capture.delivery": delivery, "capture.source": source, "capture.lease_seconds": "12"}
    return Tool(f"tailrace {delivery}, {source}", tailrace.__version__, settings, _launch_tailrace)


def _launch_tailrace(aim: Aim, settings: Mapping[str, str]) -> RunningTool:
    position: StoredPosition = InFiles(aim.folder / "positions", "*.position.json")
    store = f"file:{aim.folder / 'positions'}"
    if settings["capture.delivery"] == "exactly-once":
        position = InTopic(aim.servers, f"{aim.name}-positions")
        store = f"kafka://{aim.servers}/{aim.name}-positions"
    chosen = {
        "mongodb.uri": aim.uri,
        "capture.name": aim.name,
        "capture.namespaces": f'["{aim.database}.orders"]',
        "capture.start": "now",
        "capture.sink": f"kafka://{aim.servers}",
        "capture.topic_prefix": aim.name,
        "capture.partitions": "3",
        "capture.position_store": store,
        **settings,
    }
    environment = {f"TAILRACE_{key.upper().replace('.', '__')}": value for key, value in chosen.items()}
    program = str(Path(sys.executable).with_name("tailrace"))
    return RunningTool(Service("tailrace", [program, "produce"], aim.folder, environment), position)


NAIVE_LOOP = """
import sys, pathlib
from bson import json_util
from confluent_kafka import Producer
from pymongo import MongoClient
uri, servers, database, topic, file = sys.argv[1:]
producer, kept = Producer({"bootstrap.servers": servers}), pathlib.Path(file)
token = json_util.loads(kept.read_text()) if kept.exists() else None
with MongoClient(uri)[database].orders.watch(resume_after=token) as stream:
    for event in stream:
        key = json_util.dumps(event.get("documentKey"))
        producer.produce(topic, json_util.dumps(event), key=key)
        producer.poll(0)
        kept.write_text(json_util.dumps(stream.resume_token))
"""
"""What a first search for an example gives: the token is written when the record was handed to the client library."""


def naive_loop() -> Tool:
    """A loop over `watch()` that produces and keeps the token in a file."""
    settings = {"token": "written to a file after each event"}
    return Tool("naive loop", f"pymongo {pymongo.version}", settings, _launch_naive)


def _launch_naive(aim: Aim, settings: Mapping[str, str]) -> RunningTool:
    program = aim.folder / "naive.py"
    program.write_text(NAIVE_LOOP)
    topic = f"{aim.name}.{aim.database}.orders"
    arguments = [aim.uri, aim.servers, aim.database, topic, str(aim.folder / "token")]
    service = Service("naive", [sys.executable, str(program), *arguments], aim.folder, {})
    return RunningTool(service, InFiles(aim.folder, "token"))


def debezium() -> Tool:
    """Debezium in a distributed worker of Kafka Connect."""
    settings = {
        "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
        "capture.mode": "change_streams",
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        "topic.creation.default.partitions": "3",
        "topic.creation.default.replication.factor": "1",
        "tasks.max": "1",
    }

    def place(aim: Aim) -> dict[str, str]:
        return {
            "mongodb.connection.string": aim.uri,
            "topic.prefix": aim.name,
            "collection.include.list": f"{aim.database}.orders",
        }

    def launch(aim: Aim, chosen: Mapping[str, str]) -> RunningTool:
        return _launch_connect(DEBEZIUM, aim, _JSON, {**chosen, **place(aim)})

    return Tool("Debezium", DEBEZIUM.version, settings, launch, of_debezium)


def mongo_kafka() -> Tool:
    """MongoDB's own source connector in a distributed worker of Kafka Connect."""
    settings = {
        "connector.class": "com.mongodb.kafka.connect.MongoSourceConnector",
        "collection": "orders",
        "output.schema.infer.value": "false",
        "topic.creation.default.partitions": "3",
        "topic.creation.default.replication.factor": "1",
        "tasks.max": "1",
    }

    def launch(aim: Aim, chosen: Mapping[str, str]) -> RunningTool:
        place = {"connection.uri": aim.uri, "database": aim.database, "topic.prefix": aim.name}
        return _launch_connect(MONGO_KAFKA, aim, _STRINGS, {**chosen, **place})

    return Tool("MongoDB Kafka connector", MONGO_KAFKA.version, settings, launch)


def _launch_connect(peer: Peer, aim: Aim, converter: str, connector: Mapping[str, str]) -> RunningTool:
    """A worker in distributed mode, with offsets in Kafka and an idempotent producer, as in production."""
    port = reserve_port()
    properties = {
        "bootstrap.servers": aim.servers,
        "group.id": aim.name,
        "listeners": f"http://127.0.0.1:{port.number}",
        **{f"{kind}.storage.topic": f"{aim.name}-{kind}" for kind in ("config", "offset", "status")},
        **{f"{kind}.storage.replication.factor": 1 for kind in ("config", "offset", "status")},
        "offset.storage.partitions": 1,
        "status.storage.partitions": 1,
        "offset.flush.interval.ms": 1_000,
        "plugin.discovery": "only_scan",
        "key.converter": converter,
        "value.converter": converter,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
    }
    config = aim.folder / "worker.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    command = [java(), HEAP, quiet, "-cp", peer.class_path(), main, str(config)]
    url = f"http://127.0.0.1:{port.number}/connectors"

    def begin() -> None:
        deadline = time.monotonic() + _SECONDS_TO_START
        while _ask("PUT", f"{url}/{aim.name}/config", connector) is None:
            assert time.monotonic() < deadline, "Kafka Connect takes no orders"
            time.sleep(1)

    def failed() -> str:
        state = _ask("GET", f"{url}/{aim.name}/status") or {}
        parts = [state.get("connector", {}), *state.get("tasks", [])]
        traces = [str(part.get("trace", "failed")) for part in parts if part.get("state") == "FAILED"]
        return traces[0].splitlines()[0] if traces else ""

    position = InTopic(aim.servers, f"{aim.name}-offset")
    return RunningTool(Service(peer.name, command, aim.folder, {}), position, begin, failed, [port])


def _ask(method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
    """Ask a worker's REST interface; None when it gives no good answer yet."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"true")
    except (OSError, ValueError, urllib.error.URLError):
        return None


TOOLS = [
    tailrace_tool("at-least-once", "change-stream"),
    tailrace_tool("at-least-once", "oplog"),
    tailrace_tool("exactly-once", "change-stream"),
    tailrace_tool("exactly-once", "oplog"),
    debezium(),
    mongo_kafka(),
    naive_loop(),
]
