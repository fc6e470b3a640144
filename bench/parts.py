"""Parts: what turning an event into a record costs in each format, handing records to Kafka, and merging shards.

Formats and the hand-over are done by the kernel and by Python; Kafka's library answers itself, so no server takes part.

python -m bench.parts [--mode quick] [--only REGEX]
"""

from __future__ import annotations

import gc
import heapq
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import bson
from bson import Int64, ObjectId, Timestamp, json_util

from bench.accounting import Meter
from bench.contestant import Contestant
from bench.scenario import Claim, Scenario, main
from tailrace import kernel
from tailrace.capture.formats import make_format
from tailrace.capture.formats.registry import SchemaRegistry
from tailrace.capture.kafka_address import KafkaAddress
from tailrace.capture.kafka_handover import Batch, Handover, open_handover
from tailrace.capture.record import Record
from tailrace.capture.sinks.kafka import PRODUCER_SETTINGS
from tailrace.capture.sinks.kafka_topics import Topic
from tailrace.cluster import Merge
from tailrace.engine import Event
from tailrace.token import ResumeToken

NAME = "parts"
TITLE = "formats, the hand-over to Kafka and the merge of shards, alone"
SIZES = {
    "tiny": {"rounds": 1, "events": 500},
    "quick": {"rounds": 5, "events": 10_000},
    "full": {"rounds": 9, "events": 50_000},
}
FORMATS, HANDOVER, MERGE = "formats", "hand-over to Kafka", "merge of three shards"
JSON_UTIL, HEAP, OURS = "bson.json_util", "heapq.merge", "router"
IN_PYTHON = ", Python"
"""Behind the name of what the reference does, where the kernel does the same."""
FLAT_FIELDS = ["user_id", "total", "status"]


class InProcess(Contestant):
    """Something that is done here, and timed by this process's own CPU."""

    def __init__(self, name: str, do: Callable[[], int], **options: Any) -> None:
        super().__init__(name, **options)
        self._do = do

    def launch(self, folder: Path) -> None:
        """Nothing is needed."""

    def run(self, meter: Meter) -> dict[str, float]:
        """Do it once."""
        gc.collect()
        began = time.process_time()
        count = self._do()
        used = time.process_time() - began
        return {"tool_us": used / count * 1e6, "rate": count / used}

    def close(self) -> None:
        """Nothing is held."""


class HandoverToKafka(Contestant):
    """Hands records over and takes their reports, in a thread whose CPU counts; the library has threads of its own."""

    def __init__(self, name: str, wanted: str, batches: Sequence[Sequence[Record]]) -> None:
        super().__init__(name)
        self._wanted = wanted
        self._batches = batches
        self._handover: Handover

    def launch(self, folder: Path) -> None:
        """Let the library be its own broker."""
        with chosen(self._wanted):
            address = KafkaAddress("", options={"test.mock.num.brokers": "1"})
            self._handover = open_handover(address, PRODUCER_SETTINGS)

    def run(self, meter: Meter) -> dict[str, float]:
        """Hand over batches until all are acknowledged."""
        gc.collect()
        topics = {"shop.orders": Topic("orders", 2**30)}
        batches = [Batch(records, 0, len(records)) for records in self._batches]
        count = sum(map(len, self._batches))
        began = time.thread_time()
        for batch in batches:
            self._handover.send(batch, topics)
            self._handover.poll(0)
        while any(batch.left for batch in batches):
            self._handover.poll(0.1)
        used = time.thread_time() - began
        return {"tool_us": used / count * 1e6, "rate": count / used}

    def close(self) -> None:
        """Drop the producer."""
        self._handover.purge()


@contextmanager
def chosen(wanted: str) -> Iterator[None]:
    """Choose between the kernel (`on`) and Python (`off`) for what is made inside."""
    before = os.environ.get(kernel.VARIABLE)
    os.environ[kernel.VARIABLE] = wanted
    try:
        yield
    finally:
        os.environ.pop(kernel.VARIABLE)
        if before is not None:
            os.environ[kernel.VARIABLE] = before


class _RegistryInMemory(SchemaRegistry):
    """Takes every schema: what is measured is the writing, and a registry is asked only for new schemas."""

    def latest(self, subject: str) -> tuple[int, str] | None:
        return None

    def register(self, subject: str, schema: str, kind: str, *, is_first: bool) -> int:
        return 1


def body(scenario: Scenario) -> None:
    """Formats, the hand-over, then the merge."""
    events = [make_event(number) for number in range(scenario["events"])]
    writers: dict[str, Callable[[list[bytes]], Any]] = {JSON_UTIL: with_json_util}
    scenario.claims = []
    for name in ("json", "canonical", "bson", "flat", "debezium", "cloudevents"):
        for wanted, text in (("on", name), ("off", name + IN_PYTHON)):
            with chosen(wanted):
                writers[text] = make_format(name, fields=FLAT_FIELDS if name == "flat" else ()).batch
        scenario.claims += [Claim(name, peer, "tool_us", group=FORMATS) for peer in (name + IN_PYTHON, JSON_UTIL)]
    for name in ("avro", "jsonschema"):
        writers[name] = make_format(name, registry=_RegistryInMemory("http://nowhere", "BACKWARD")).batch
    for name in ("avro", "jsonschema", "cloudevents"):
        scenario.claims.append(Claim(name, "json", "tool_us", goal=0.8, group=FORMATS))
    scenario.claims.append(Claim("kernel", "record by record", "tool_us", group=HANDOVER))
    scenario.claims.append(Claim(OURS, HEAP, "tool_us", group=MERGE))
    made = [
        InProcess(name, lambda write=write: written(write, events), peer=name == JSON_UTIL)  # type: ignore[misc]
        for name, write in writers.items()
    ]
    with scenario.contestants(made, group=FORMATS) as started:
        scenario.interleave(started, Meter({}), group=FORMATS)
    make = make_format("json").batch
    batches = [make(events[begin : begin + 500]) for begin in range(0, len(events), 500)]
    handovers = [
        HandoverToKafka("kernel", "on", batches),
        HandoverToKafka("record by record", "off", [list(batch) for batch in batches]),
    ]
    with scenario.contestants(handovers, group=HANDOVER) as started:
        scenario.interleave(started, Meter({}), group=HANDOVER)
    shards = three_shards(scenario["events"] * 3)
    merges = [InProcess(OURS, lambda: merge_batches(shards)), InProcess(HEAP, lambda: merge_by_heap(shards), peer=True)]
    with scenario.contestants(merges, group=MERGE) as started:
        scenario.interleave(started, Meter({}), group=MERGE)


def make_event(number: int) -> bytes:
    """An insert as the server would give it."""
    key = ObjectId()
    token = f"8265F0A1B2{number:08X}2B022C0100296E5A1004{os.urandom(16).hex()}46645F69640064{key}0004".upper()
    document: dict[str, Any] = {
        "_id": key,
        "user_id": random.randrange(10**6),
        "total": Int64(random.randrange(10**9)),
        "price": random.random() * 100,
        "status": "shipped",
        "tags": ["new", "gift"],
        "address": {"street": "Main street 12", "city": "Springfield", "zip": "12345"},
        "note": "x" * 80,
    }
    event = {"_id": {"_data": token}, "operationType": "insert", "clusterTime": Timestamp(0x65F0A1B2, number)}
    return bson.encode(
        {**event, "fullDocument": document, "ns": {"db": "shop", "coll": "orders"}, "documentKey": {"_id": key}}
    )


def with_json_util(events: list[bytes]) -> list[tuple[bytes, bytes]]:
    """What pymongo's own library offers for Extended JSON."""
    decoded = (bson.decode(event) for event in events)
    return [(json_util.dumps(each["documentKey"]).encode(), json_util.dumps(each).encode()) for each in decoded]


def written(write: Callable[[list[bytes]], Any], events: list[bytes], size: int = 500) -> int:
    """Write all events in a format, some at a time as the producer does."""
    for begin in range(0, len(events), size):
        write(events[begin : begin + size])
    return len(events)


@cache
def three_shards(events: int) -> list[list[Event]]:
    """Events of three shards, spread by turns, about 300 bytes each."""
    shards: list[list[Event]] = [[], [], []]
    for number in range(events):
        token = ResumeToken.high_water_mark(Timestamp(1_700_000_000 + number // 1000, number % 1000 + 1))
        raw = bson.encode({"_id": token.to_document(), "operationType": "insert", "fullDocument": {"x": bytes(200)}})
        shards[number * 7 % 3].append(Event(raw, 0, b"shop.orders", "insert"))
    return shards


def merge_batches(shards: list[list[Event]], size: int = 1_000) -> int:
    """Merge as the router does, batch by batch."""
    merge: Merge[Event] = Merge()
    for name in range(3):
        merge.add(str(name), ResumeToken.parse(shards[name][0].token))
    merged = 0
    for start in range(0, max(map(len, shards)), size):
        for name, events in enumerate(shards):
            if batch := events[start : start + size]:
                merge.feed(str(name), batch, ResumeToken.parse(batch[-1].token))
        merged += len(merge.take())
    for name in range(3):
        merge.remove(str(name))
    return merged + len(merge.take())


def merge_by_heap(shards: list[list[Event]]) -> int:
    """Merge with the standard library."""
    return sum(1 for _ in heapq.merge(*shards, key=attrgetter("sort_key")))


if __name__ == "__main__":
    main(NAME, TITLE, SIZES, body)
