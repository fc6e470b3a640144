"""The ways into Kafka that run in a Python process: our producer, and the loop that everybody writes first."""

from __future__ import annotations

import itertools
import json
import tempfile
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from bson import Timestamp
from pymongo import MongoClient

from bench.child import Marks

_numbers = itertools.count()
POLICY: Final[Mapping[str, Any]] = {
    "policy.key": "k" * 32,
    "policy.rules": (
        {"namespaces": ("bench.*",), "fields": ("user_id",), "action": "hash"},
        {"namespaces": ("bench.*",), "fields": ("lines.sku",), "action": "mask"},
        {"namespaces": ("bench.*",), "fields": ("note",), "action": "truncate", "length": 100},
        {"fields": ("card",), "action": "drop"},
    ),
}
"""A hash, a value in an array, a long text, and a field that these documents do not have: records stay as long."""


def capture(
    uri: str,
    servers: str,
    start: list[int],
    events: int,
    marks: Marks,
    prefix: str,
    format: str = "json",
    source: str = "change-stream",
    delivery: str = "at-least-once",
    scope: str = "cluster",
    policy: bool = False,
) -> None:
    """Our producer, from a stored position to the end of the load, start included; its topic is there already."""
    from tailrace.capture.positions import Position
    from tailrace.capture.producer.assembly import Capture
    from tailrace.cli.producing import limit_malloc_arenas

    limit_malloc_arenas()  # as `tailrace produce` does
    name = f"{prefix}-{next(_numbers)}"
    with tempfile.TemporaryDirectory() as folder:
        client: MongoClient[Any] = MongoClient(uri)
        choice = {"format": format, "source": source, "delivery": delivery, "scope": scope}
        more = dict(POLICY) if policy else {}
        if format in ("avro", "jsonschema"):
            more["registry.url"] = registry_in_memory()
        settings = capture_settings(uri, servers, name, folder, topic_prefix=prefix, **choice, more=more)
        with client, Capture.open(settings, client) as opened:
            opened.begin_at(Position(None, Timestamp(*start)), reason="bench")

            def count(point: str) -> None:
                if point == "acknowledged" and marks.reach(producer.delivered):
                    producer.stop()

            producer = opened.producer(hook=count)
            marks.begin()
            producer.run()


def capture_settings(
    uri: str,
    servers: str,
    name: str,
    folder: str,
    *,
    topic_prefix: str = "",
    format: str = "json",
    source: str = "change-stream",
    delivery: str = "at-least-once",
    scope: str = "cluster",
    more: Mapping[str, Any] | None = None,
) -> Any:
    """The settings of a producer of one collection, with positions where they suit its guarantee."""
    from tailrace.settings import Settings

    exactly_once = delivery == "exactly-once"
    return Settings.load(
        flags={
            "mongodb.uri": uri,
            "capture.name": name,
            "capture.source": source,
            "capture.format": format,
            "capture.fields": ("user_id", "price", "status") if format == "flat" else (),
            "capture.delivery": delivery,
            "capture.scope": scope,
            "capture.sink": f"kafka://{servers}",
            "capture.topic_prefix": topic_prefix or name,
            "capture.partitions": 3,
            "capture.namespaces": ("bench.orders",),
            "capture.position_store": f"kafka://{servers}/{name}-positions" if exactly_once else f"file:{folder}",
            **(more or {}),
        }
    )


class _Registry(BaseHTTPRequestHandler):
    """Knows no schema and takes every one: a registry is asked for new schemas, never for a record."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(404, {})

    def do_PUT(self) -> None:
        self._answer(200, {})

    def do_POST(self) -> None:
        self._answer(200, {"id": 1})

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: Any) -> None:
        """Nothing is told."""


@cache
def registry_in_memory() -> str:
    """The address of a registry in this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def naive(uri: str, servers: str, start: list[int], events: int, marks: Marks, prefix: str) -> None:
    """What a first version looks like: one synchronous send and one token file per event."""
    with MongoClient[Any](uri) as client:
        client.admin.command("ping")
        marks.begin()
        with client.bench.orders.watch(start_at_operation_time=Timestamp(*start)) as stream:
            send_each(itertools.islice(stream, events), servers, f"{prefix}-{next(_numbers)}")
        marks.reach(events)


def send_each(events: Iterable[dict[str, Any]], servers: str, topic: str) -> None:
    """Send every event and wait for it, then leave its token."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    with tempfile.TemporaryDirectory() as folder:
        for event in events:
            key = json.dumps(event.get("documentKey"), default=str)
            producer.produce(topic, json.dumps(event, default=str), key)
            producer.flush()
            new = Path(folder, "token.new")
            new.write_text(json.dumps(event["_id"]))
            new.replace(Path(folder, "token"))
