"""A producer over a sink that keeps everything in memory, for tests that look at order and content."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bson

from tailrace.capture.formats import make_format
from tailrace.capture.positions import open_store
from tailrace.capture.producer.control import ProducerOptions
from tailrace.capture.producer.producer import Producer
from tailrace.capture.record import Record
from tailrace.capture.recovery.inventory import KeyInventory, LocalInventory
from tailrace.capture.sinks import Sink
from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.source import ClusterAccess, Selection, make_source
from tailrace.errors import Backpressure, EventUnconvertible
from tailrace.retry import RetryPolicy
from waiting import SECONDS

QUICK = RetryPolicy(first=0.05, longest=0.5, budget=60)


class ListSink(Sink):
    """A user's own sink: appends to a list; acknowledges at once, unless told to be slow."""

    def __init__(self, delivered: list[Record], room: Callable[[], bool]) -> None:
        self._delivered = delivered
        self._room = room
        self._count = 0

    def setup(self) -> None:
        self._count = 0

    def add(self, records: Sequence[Record]) -> int:
        if not self._room():
            raise Backpressure("no room", retry_after=0.01)
        self._delivered.extend(records)
        self._count += len(records)
        return self._count

    def acknowledged(self) -> int:
        return self._count

    def flush(self, timeout: float) -> int:
        return self._count

    def close(self) -> None:
        pass


@dataclass
class Harness:
    """What a test needs to run producers, one after another, over the same store and sink."""

    client: Any
    folder: Path
    namespaces: Sequence[str]
    kind: str = "change-stream"
    selection: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    delivered: list[Record] = field(default_factory=list)
    aside: list[bytes] = field(default_factory=list)
    room: Callable[[], bool] = lambda: True
    format: Any = None
    inventory: KeyInventory | None = None
    store_url: str | None = None
    cluster: ClusterAccess | None = None

    def producer(self, hook: Callable[[str], None] = lambda _: None, **options: Any) -> Producer:
        selection = Selection(Namespaces.parse(self.namespaces), **{"max_await_ms": 100, **self.selection})
        chosen = {"name": "orders", "backoff": QUICK, "commit_interval": 0.0, **self.options, **options}
        return Producer(
            make_source(self.kind, self.client, selection, self.cluster),
            open_store(self.store_url or f"file:{self.folder / 'positions'}"),
            self.format or make_format("bson"),
            lambda: ListSink(self.delivered, lambda: self.room()),
            self._dead_letter,
            self.inventory or LocalInventory(self.folder / "keys.sqlite"),
            ProducerOptions(**chosen),
            hook=hook,
        )

    def run_until_idle(self, **options: Any) -> Producer:
        producer = self.producer(stop_when_idle=True, **options)
        producer.run()
        return producer

    @contextmanager
    def running(self, **options: Any) -> Iterator[Producer]:
        with run_in_background(self.producer(**options)) as producer:
            yield producer

    def events(self) -> list[dict[str, Any]]:
        return [bson.decode(record.event) for record in self.delivered]

    def state(self, *, by_version: bool = False) -> dict[bytes, Any]:
        """The documents as a consumer has them that lets the last record win, or the greatest cluster time."""
        documents: dict[bytes, Any] = {}
        versions: dict[bytes, int] = {}
        for record in self.delivered:
            assert record.key is not None
            if by_version and record.cluster_time < versions.get(record.key, 0):
                continue
            versions[record.key] = record.cluster_time
            event = bson.decode(record.event)
            if event["operationType"] == "delete":
                documents.pop(record.key, None)
            elif event.get("fullDocument") is not None:
                documents[record.key] = event["fullDocument"]
        return documents

    def _dead_letter(self, event: bytes, error: EventUnconvertible) -> None:
        self.aside.append(event)


@contextmanager
def run_in_background(producer: Producer) -> Iterator[Producer]:
    """Let a producer run as long as the block does; what it raises is raised at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            producer.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield producer
    finally:
        producer.stop()
        thread.join(SECONDS)
        if errors:
            raise errors[0]
    assert not thread.is_alive(), "the producer does not stop"


@contextmanager
def repeated(step: Callable[[], None], pause: float = 0.0) -> Iterator[None]:
    """Do something again and again in a thread, as long as the block runs."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(pause):
            step()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(SECONDS)


def documents_of(collection: Any) -> dict[bytes, Any]:
    return {bson.encode({"_id": document["_id"]}): document for document in collection.find()}
