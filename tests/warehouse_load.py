"""A load of every kind of change, its events in topics, and a comparison of mirrors with their collections."""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import bson
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument
from confluent_kafka import Producer
from pymongo.collection import Collection

from tailrace.capture.formats import make_format

RAW = bson.CodecOptions(document_class=RawBSONDocument)


class Load:
    """Inserts, updates of every form, replacements and deletes of a few documents."""

    def __init__(self, collection: Collection[dict[str, Any]], seed: int, keys: int = 40) -> None:
        self._collection = collection
        self._chance = random.Random(seed)
        self._keys = keys

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        chance, key = self._chance, self._key()
        kind = chance.random()
        if kind < 0.35:
            self._collection.replace_one({"_id": key}, self._document(), upsert=True)
        elif kind < 0.8:
            self._collection.update_one({"_id": key}, self._update())
        elif kind < 0.9:
            self._collection.update_one({"_id": key}, [{"$set": {"list": {"$slice": ["$list", 1]}}}])
        else:
            self._collection.delete_one({"_id": key})

    def _key(self) -> Any:
        number = self._chance.randrange(self._keys)
        return (number, f"k{number}", ObjectId(f"{number:024x}"), {"a": number})[number % 4]

    def _document(self) -> dict[str, Any]:
        names = self._chance.sample(sorted(VALUES), self._chance.randrange(len(VALUES)))
        document: dict[str, Any] = {name: self._chance.choice(VALUES[name]) for name in names}
        return {**document, "list": [1, 2, {"x": "y"}], "inner": {"n": 1, "deep": {"z": [1]}}, "at": datetime.now(UTC)}

    def _update(self) -> dict[str, Any]:
        name = self._chance.choice(sorted(VALUES))
        return self._chance.choice(
            [
                {"$set": {name: self._chance.choice(VALUES[name])}},
                {"$set": {"inner.n": self._chance.randrange(9), f"inner.{name}": self._chance.choice(VALUES[name])}},
                {"$unset": {name: 1, "inner.deep": 1}},
                {"$push": {"list": self._chance.randrange(9)}},
                {"$set": {"list.0": "changed"}},
                {"$inc": {"counter": Int64(1)}},
            ]
        )


VALUES: dict[str, list[Any]] = {
    "amount": [1, Int64(2**40), 1.5, Decimal128("2.50"), "n/a", None],
    "flag": [True, False],
    "text": ["", "ä\0b", "x" * 50],
    "binary": [b"\0\1", Binary(b"\2", 128), Binary.from_uuid(uuid.UUID(int=7))],
    "date": [datetime(1969, 12, 31, tzinfo=UTC), datetime(2024, 2, 29, 1, 2, 3, 4000, tzinfo=UTC)],
    "odd": [Regex("a.b", "i"), Code("f()"), Code("g()", {"x": 1}), MinKey(), MaxKey(), Timestamp(5, 6)],
    "double": [float("inf"), -0.0, 1e300, 7],
    "id": [ObjectId("1" * 24), "1" * 24],
    "empty": [{}, [], [None], [[]], [[1], [2]]],
    "Text": ["differs in case only"],
    "with space": [1],
    "dotted": [{"a.b": 1, "$c": 2}],
    "items": [[{"n": 1}, {"n": Int64(2), "m": "x"}], [{"n": 1.5}], [1, "mixed"], [{"n": "text"}]],
}


def now(client: Any) -> Timestamp:
    time_: Timestamp = client.admin.command("ping")["operationTime"]
    return Timestamp(time_.time, time_.inc + 1)


class Topic:
    """Writes the events of collections to a topic, as the capture does."""

    def __init__(self, kafka: Any, name: str, format: str = "bson") -> None:
        self.name = name
        self._format = make_format(format)
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def fill(self, database: Any, start: Timestamp, copies: int = 1, **options: Any) -> int:
        """Write what happened since; gives the number of events."""
        count = 0
        with database.watch(start_at_operation_time=start, max_await_time_ms=200, **options) as stream:
            while (event := stream.try_next()) is not None:
                self.write(bson.encode(event), copies)
                count += 1
        assert self._producer.flush(30) == 0
        return count

    def write(self, event: bytes, copies: int = 1) -> None:
        for record in self._format.records(event):
            for _ in range(copies):
                self._producer.produce(self.name, record.value, record.key, headers=list(record.headers))

    def write_bad(self, value: bytes) -> None:
        self._producer.produce(self.name, value)
        assert self._producer.flush(30) == 0


def documents(collection: Collection[Any]) -> dict[str, bytes]:
    """The documents of a collection as their bytes, by `_id`."""
    raw = collection.with_options(codec_options=RAW)
    return {repr(bson.decode(found.raw)["_id"]): bytes(found.raw) for found in raw.find()}


def mirrored(table: Any) -> dict[str, bytes]:
    """The documents that a mirror holds."""
    rows = table.where("NOT _is_deleted").select("_bson").collect()
    return {repr(bson.decode(row[0])["_id"]): bytes(row[0]) for row in rows}


def differences(table: Any, collection: Collection[Any]) -> list[tuple[Any, Any]]:
    """The documents in which a mirror and its collection differ."""
    ours, theirs = mirrored(table), documents(collection)
    return [
        (key, (ours.get(key) and bson.decode(ours[key]), theirs.get(key) and bson.decode(theirs[key])))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]


def wait_for_time(client: Any, at: Timestamp, seconds: float = 10) -> None:
    """Wait until the server's clock is behind a time."""
    deadline = time.monotonic() + seconds
    while now(client) <= at:
        assert time.monotonic() < deadline
        time.sleep(0.05)
