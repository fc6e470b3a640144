"""Sinks with the real other side of each: what arrived there can be read, and it can be stalled."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bson
import redis
from confluent_kafka import Consumer

from tailrace.capture.dead_letters.dead_letters import DeadLetters
from tailrace.capture.formats import make_format
from tailrace.capture.kafka_client import bounds_of
from tailrace.capture.record import Record
from tailrace.capture.sinks import Sink, SinkOptions, open_sink
from tailrace.capture.sinks.topics import TopicRule
from tailrace.stand import Kafka, Redis
from waiting import SECONDS

Message = tuple[Any, Any]


def change(number: int, operation: str = "insert", *, size: int = 10, ns: str = "shop.orders") -> bytes:
    """An event as a server writes it, with a text that cannot be compressed."""
    database, collection = ns.split(".")
    event: dict[str, Any] = {
        "_id": {"_data": f"82{number + 1:08X}000000012B022C0100296E04"},
        "operationType": operation,
        "clusterTime": bson.Timestamp(number + 1, 1),
    }
    if operation != "delete":
        event["fullDocument"] = {
            "_id": number % 10,
            "number": number,
            "text": random.Random(number).randbytes(size // 2).hex(),
        }
    return bson.encode({**event, "ns": {"db": database, "coll": collection}, "documentKey": {"_id": number % 10}})


def records(*numbers: int, size: int = 10, ns: str = "shop.orders") -> Sequence[Record]:
    """Records of inserts in the format `json`, as a producer gives them to a sink: with the kernel they stay in it."""
    return make_format("json").batch([change(number, size=size, ns=ns) for number in numbers])


_SECONDS_FOR_MARKERS = 3.0


class OtherSide(ABC):
    """Where a sink delivers to."""

    largest = 2000
    """Records of this size are delivered; those ten times as large are refused, where a side refuses any."""
    refuses = True
    stalls = True

    def __init__(self, dead_letters: DeadLetters) -> None:
        self.dead_letters = dead_letters

    @abstractmethod
    def sink(self, **options: Any) -> Sink:
        """Make a sink that delivers here."""

    @abstractmethod
    def numbers(self) -> list[int]:
        """Give the numbers of the events that arrived, those with one key in their order."""

    def stall(self) -> None:
        """Let nothing through until `go_on`."""
        raise NotImplementedError

    def go_on(self) -> None:  # noqa: B027 - sides that cannot be stalled have nothing to do
        """Let everything through again."""

    def close(self) -> None:  # noqa: B027 - most are ended by their fixture
        """End it."""


class KafkaSide(OtherSide):
    def __init__(self, dead_letters: DeadLetters, broker: Kafka, url: str | None = None) -> None:
        """`url` is how sinks reach the broker, by default directly."""
        super().__init__(dead_letters)
        self.broker = broker
        self.url = url or f"kafka://{broker.bootstrap_servers}"
        self.prefix = f"t{uuid.uuid4().hex[:8]}"

    def sink(self, **options: Any) -> Sink:
        chosen = SinkOptions(topics=TopicRule(self.prefix), partitions=3, **options)
        return open_sink(self.url, self.dead_letters, chosen)

    def messages(self, topic: str | None = None, isolation: str = "read_committed") -> list[Any]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "group.id": uuid.uuid4().hex,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 10,
            }
        )
        topic = topic or f"{self.prefix}.shop.orders"
        try:
            if isolation == "read_committed":
                self._wait_for_commit_markers(consumer, topic)
            return read_all(consumer, topic)
        finally:
            consumer.close()

    def _wait_for_commit_markers(self, consumer: Consumer, topic: str) -> None:
        """Wait until the last stable offsets are at the ends, unless a transaction is open for longer.

        A commit is acknowledged before its markers are in the partitions, and until then its records are not shown.
        """
        anything = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_uncommitted",
            }
        )
        deadline = time.monotonic() + _SECONDS_FOR_MARKERS
        try:
            for number in consumer.list_topics(topic, timeout=120).topics[topic].partitions:
                while time.monotonic() < deadline:
                    stable, end = (bounds_of(each, topic, number)[1] for each in (consumer, anything))
                    if stable >= end:
                        break
                    time.sleep(0.02)
        finally:
            anything.close()

    def numbers(self) -> list[int]:
        return [json.loads(m.value())["fullDocument"]["number"] for m in self.messages() if m.value() is not None]

    def stall(self) -> None:
        self.broker.pause()

    def go_on(self) -> None:
        self.broker.resume()


def read_all(consumer: Consumer, topic: str) -> list[Any]:
    from confluent_kafka import KafkaError, TopicPartition

    metadata = consumer.list_topics(topic, timeout=120).topics[topic]
    consumer.assign([TopicPartition(topic, partition, 0) for partition in metadata.partitions])
    open_partitions, messages = set(metadata.partitions), []
    while open_partitions:
        message = consumer.poll(10)
        assert message is not None, "the topic is not read to its end"
        if message.error() is None:
            messages.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            open_partitions.discard(message.partition())
    return messages


class FileSide(OtherSide):
    refuses = False
    stalls = False

    def __init__(self, dead_letters: DeadLetters, folder: Path) -> None:
        super().__init__(dead_letters)
        self.path = folder / "out" / "events.jsonl"

    def sink(self, **options: Any) -> Sink:
        return open_sink(f"file:{self.path}", self.dead_letters, SinkOptions(**options))

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def numbers(self) -> list[int]:
        return [line["value"]["fullDocument"]["number"] for line in self.lines() if line["value"] is not None]


class WebhookSide(OtherSide):
    """A receiver that takes posts up to a size, answers what it is told to, and keeps what it got."""

    def __init__(self, dead_letters: DeadLetters) -> None:
        super().__init__(dead_letters)
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.open = threading.Event()
        self.open.set()
        side = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                side.open.wait(SECONDS)
                status, headers = side.answers.pop(0) if side.answers else (200, {})
                if status == 200 and len(body) > 10 * side.largest:
                    status = 413
                if status == 200:
                    side.posts.append((dict(self.headers), body))
                self.send_response(status)
                for name, value in {"Content-Length": "0", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hook?a=1"

    def sink(self, **options: Any) -> Sink:
        return open_sink(self.url, self.dead_letters, SinkOptions(webhook_secret="secret", **options))

    def numbers(self) -> list[int]:
        values = [record["value"] for _, body in self.posts for record in json.loads(body)]
        return [value["fullDocument"]["number"] for value in values if value is not None]

    def stall(self) -> None:
        self.open.clear()

    def go_on(self) -> None:
        self.open.set()

    def close(self) -> None:
        self.go_on()
        self.server.shutdown()
        self.server.server_close()


class RedisSide(OtherSide):
    """A cache with an entry for every number there may be; those that arrived are gone."""

    refuses = False

    def __init__(self, dead_letters: DeadLetters, server: Redis) -> None:
        super().__init__(dead_letters)
        self.server = server
        self.client = redis.Redis.from_url(server.url)
        self.client.mset({f"order:shop:{number}": "cached" for number in range(2000)})

    def sink(self, **options: Any) -> Sink:
        url = f"{self.server.url}?key=order:{{db}}:{{number}}"
        return open_sink(url, self.dead_letters, SinkOptions(**options))

    def numbers(self) -> list[int]:
        return [number for number in range(2000) if not self.client.exists(f"order:shop:{number}")]

    def stall(self) -> None:
        self.server.pause()

    def go_on(self) -> None:
        self.server.resume()

    def close(self) -> None:
        self.client.close()


SIDES = ("kafka", "file", "webhook", "redis")
