"""What is written before and during the measurements, always from a seed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from bson import Int64, ObjectId, Timestamp
from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne, WriteConcern

NAMESPACE = "bench.orders"
SEED = 1
_BATCH = 1_000
BUCKETS = 600
ONE_BUCKET = {"fullDocument.bucket": 7}
"""A filter that keeps one in a thousand events, since six in ten are inserts."""

Client = MongoClient[dict[str, Any]]


def document(rng: random.Random, size: int = 300) -> dict[str, Any]:
    """Make an order of about so many bytes."""
    return {
        "_id": ObjectId(),
        "bucket": rng.randrange(BUCKETS),
        "user_id": rng.randrange(10_000),
        "price": rng.random() * 100,
        "status": "placed",
        "lines": [{"sku": f"sku-{rng.randrange(1000)}", "count": rng.randrange(1, 5)} for _ in range(2)],
        "note": "x" * max(0, size - 190),
    }


def load(
    client: Client,
    events: int,
    *,
    size: int = 300,
    collection: str = "orders",
    seed: int = SEED,
    is_mixed: bool = True,
) -> Timestamp:
    """Write 60 % inserts, 30 % updates of two fields and 10 % deletes, in bulk; gives the time before the first.

    When they need not be mixed, those of one kind in a thousand follow each other, which takes a fraction of the time.
    """
    rng = random.Random(seed)
    # Nobody waits for the journal here: that would take most of the time.
    orders = client.bench.get_collection(collection, write_concern=WriteConcern(w=1))
    if collection not in client.bench.list_collection_names():
        client.bench.create_collection(collection)
    start = operation_time(client)
    alive: list[ObjectId] = []
    written = 0
    per_batch = max(1, min(_BATCH, 8_000_000 // size))
    while written < events:
        requests = [_request(rng, alive, size) for _ in range(min(per_batch, events - written))]
        orders.bulk_write(requests, ordered=is_mixed)
        written += len(requests)
    return start


def _request(rng: random.Random, alive: list[ObjectId], size: int) -> Any:
    chance = rng.random()
    if chance < 0.6 or len(alive) < 10:
        fresh = document(rng, size)
        alive.append(fresh["_id"])
        return InsertOne(fresh)
    if chance < 0.9:
        return UpdateOne({"_id": rng.choice(alive)}, {"$set": {"status": "shipped", "price": rng.random()}})
    place = rng.randrange(len(alive))
    alive[place], alive[-1] = alive[-1], alive[place]
    return DeleteOne({"_id": alive.pop()})


def kept_by_one_bucket(client: Client, start: Timestamp) -> int:
    """How many of the loaded events `ONE_BUCKET` keeps."""
    wanted = {"ts": {"$gte": start}, "ns": NAMESPACE, "op": "i", "o.bucket": ONE_BUCKET["fullDocument.bucket"]}
    return client.local["oplog.rs"].count_documents(wanted)


def operation_time(client: Client) -> Timestamp:
    """The time just after everything that was written so far."""
    now: Timestamp = client.admin.command("ping")["operationTime"]
    return Timestamp(now.time, now.inc + 1)


def transaction(number: int, at_us: int) -> dict[str, Any]:
    """A payment; every tenth is of a user of its own, by whose features its arrival is seen."""
    return {
        "_id": ObjectId(),
        "at_us": Int64(at_us),
        "number": number,
        "user_id": f"probe-{at_us}" if is_probe(number) else f"user-{number % 1000}",
        "amount": 9.5,
        "merchant": f"m{number % 50}",
        "placed_at": datetime.fromtimestamp(at_us / 1e6, UTC),
        "note": "x" * 150,
    }


def is_probe(number: int) -> bool:
    """Whether the document with this number is looked for in Redis."""
    return number % 10 == 0


class SteadyWriter:
    """Inserts single documents at a steady rate from several threads; each says when its insert began (`at_us`).

    One thread would not do: an acknowledged insert takes two milliseconds, so that 500 a second are never reached.
    """

    THREADS = 4

    def __init__(
        self,
        client: Client,
        count: int,
        per_second: float,
        collection: str = "orders",
        about_to: Callable[[int, int], object] | None = None,
    ) -> None:
        self._about_to = about_to or (lambda number, at_us: None)
        self._orders = client.bench[collection]
        self._numbers = iter(range(count))
        self._lock = threading.Lock()
        self._every = 1 / per_second
        self._began = 0.0
        self._stop_asked = threading.Event()
        self.begun: dict[int, int] = {}
        """When the insert of each document began, in microseconds."""
        self._threads = [threading.Thread(target=self._write, daemon=True) for _ in range(self.THREADS)]

    def start(self) -> None:
        """Begin to write."""
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        while not self._stop_asked.is_set():
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                return
            time.sleep(max(0.0, self._began + number * self._every - time.monotonic()))
            at_us = self.begun[number] = time.time_ns() // 1_000
            self._about_to(number, at_us)
            self._orders.insert_one(transaction(number, at_us))

    def join(self) -> None:
        """Wait until all are written."""
        for thread in self._threads:
            thread.join(600)

    def stop(self) -> None:
        """End early."""
        self._stop_asked.set()
        self.join()
