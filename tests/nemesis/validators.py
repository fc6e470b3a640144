"""What was delivered against what the server says happened. Nothing of the product is imported here.

The truth is the server's own change stream, read once at the end by pymongo from the time the run began: an event in
it was committed to a majority, and one that is not in it never happened, or was rolled back.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import bson
from bson import json_util
from bson.raw_bson import RawBSONDocument
from confluent_kafka import Consumer, KafkaException, TopicPartition
from pymongo import MongoClient

OPERATIONS = frozenset({"insert", "update", "replace", "delete"})


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one document."""

    token: str
    time: tuple[int, int]
    namespace: str
    key: bytes
    operation: str
    name: str | None
    """The number of the writer's operation, where the event carries it."""


@dataclass
class Verdict:
    """What a reader missed, what it invented, what came twice and what came out of order."""

    reader: str
    delivered: int = 0
    lost: list[Event] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    duplicated: int = 0
    reordered: list[str] = field(default_factory=list)

    def problems(self, *, duplicates_allowed: bool) -> list[str]:
        """One line for each thing that must not be."""
        found = []
        if self.lost:
            found.append(f"{self.reader} lost {len(self.lost)} events, first {self.lost[0]}")
        if self.invented:
            found.append(f"{self.reader} has {len(self.invented)} events the server has not, first {self.invented[0]}")
        if self.reordered:
            found.append(f"{self.reader} has {len(self.reordered)} events out of order, first {self.reordered[0]}")
        if self.duplicated and not duplicates_allowed:
            found.append(f"{self.reader} has {self.duplicated} events twice")
        return found


def read_event(document: Any) -> Event | None:
    """The event of a decoded change document; None for those that are not of a document."""
    if document["operationType"] not in OPERATIONS:
        return None
    stamp = document["clusterTime"]
    full = document.get("fullDocument") or {}
    updated = (document.get("updateDescription") or {}).get("updatedFields") or {}
    return Event(
        document["_id"]["_data"],
        (stamp.time, stamp.inc),
        f"{document['ns']['db']}.{document['ns']['coll']}",
        bson.encode(document["documentKey"]),
        document["operationType"],
        full.get("op") or updated.get("op"),
    )


def server_stream(uri: str, database: str, start: Any, last: Any, seconds: float = 120) -> list[Event]:
    """The server's own events of a database, from an operation time to the insert of the document `last`."""
    events: list[Event] = []
    deadline = time.monotonic() + seconds
    with (
        MongoClient[Any](uri, document_class=RawBSONDocument, serverSelectionTimeoutMS=30_000) as client,
        client[database].watch(start_at_operation_time=start, max_await_time_ms=200, batch_size=1_000) as stream,
    ):
        while time.monotonic() < deadline:
            raw = stream.try_next()
            if raw is None:
                continue
            event = read_event(bson.decode(raw.raw))
            if event is None:
                continue
            events.append(event)
            if event.key == bson.encode({"_id": last}):
                return events
    raise AssertionError("the server's own stream did not come to the end")


class TopicReader:
    """All committed records of the topics with a prefix, partition by partition, read on from call to call."""

    def __init__(self, servers: str, prefix: str, format_name: str) -> None:
        self._prefix = f"{prefix}."
        self._format = format_name
        self._options = {
            "bootstrap.servers": servers,
            "group.id": f"validator-{prefix}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
            "log_level": 0,
        }
        self._consumer = Consumer(self._options)
        self._next: dict[tuple[str, int], int] = {}
        self._assigned = 0
        self.events: list[Event] = []

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()

    def reconnect(self) -> None:
        """Read on with a new consumer: one that nobody polled while its broker died may fetch nothing any more."""
        self._consumer.close()
        self._consumer = Consumer(self._options)
        self._assigned = 0

    def poll(self, seconds: float = 1.0) -> None:
        """Read what has come since."""
        try:
            topics = self._consumer.list_topics(timeout=5).topics
        except KafkaException:
            return
        parts = [
            TopicPartition(name, partition, self._next.get((name, partition), 0))
            for name, topic in topics.items()
            if name.startswith(self._prefix)
            for partition in topic.partitions
        ]
        if len(parts) > self._assigned:  # fetching begins anew with each assignment
            self._consumer.assign(parts)
            self._assigned = len(parts)
        if not parts:
            return
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            messages = self._consumer.consume(5_000, timeout=0.3)
            for message in messages:
                if message.error():
                    continue
                self._next[message.topic(), message.partition()] = message.offset() + 1
                if message.value() is not None:
                    self._take(message.value())
            if not messages:
                return

    def has(self, key: Any) -> bool:
        """Whether an event of this key was read."""
        wanted = bson.encode({"_id": key})
        return any(event.key == wanted for event in reversed(self.events))

    def _take(self, value: bytes) -> None:
        document = bson.decode(value) if self._format == "bson" else json_util.loads(value)
        if "operationType" not in document:
            raise AssertionError(f"a record that is not a change event: {json.dumps(document, default=str)[:200]}")
        event = read_event(document)
        if event:
            self.events.append(event)


def compare(reader: str, delivered: Iterable[Event], truth: Sequence[Event], start: tuple[int, int]) -> Verdict:
    """Hold what a reader got against the truth; order is per document, and a repetition says nothing about order."""
    known = {event.token for event in truth}
    verdict = Verdict(reader)
    seen: Counter[str] = Counter()
    newest: dict[tuple[str, bytes], tuple[tuple[int, int], str]] = {}
    for event in delivered:
        if event.time <= start:
            continue
        verdict.delivered += 1
        seen[event.token] += 1
        if event.token not in known:
            verdict.invented.append(str(event))
        elif seen[event.token] == 1:
            place = (event.namespace, event.key)
            moment = (event.time, event.token)
            if moment < newest.get(place, ((0, 0), "")):
                verdict.reordered.append(f"{event} after {newest[place]}")
            newest[place] = max(moment, newest.get(place, ((0, 0), "")))
    verdict.lost = [event for event in truth if event.token not in seen]
    verdict.duplicated = sum(count - 1 for count in seen.values())
    return verdict


def unacknowledged_losses(acknowledged: Iterable[str], truth: Sequence[Event]) -> list[str]:
    """Operations that were acknowledged and of which the server's own stream knows nothing.

    An update that changed nothing makes no event, so the writers never write the same value twice.
    """
    told = {event.name for event in truth}
    return sorted(name for name in acknowledged if name not in told)
