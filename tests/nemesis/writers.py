"""Writers that log every write the server acknowledged to a majority, and each one whose fate they do not know."""

from __future__ import annotations

import datetime
import random
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from bson import Binary, Decimal128, Int64, ObjectId
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from tailrace.errors import StandError
from tailrace.owned import OwnedThread
from tailrace.stand import ShardedCluster

COLLECTIONS = ("orders", "payments", "carts")
_KEYS = 40
_SECONDS_AFTER_AN_ERROR = 0.05
_OPERATIONS_BEFORE_A_SHARD = (50, 300)
CLIENT_OPTIONS: dict[str, Any] = {
    "w": "majority",
    "retryWrites": True,
    "socketTimeoutMS": 4_000,
    "connectTimeoutMS": 2_000,
    "serverSelectionTimeoutMS": 4_000,
    "heartbeatFrequencyMS": 500,
}


def key_of(number: int, writer: int) -> Any:
    """An `_id` of one of nine types, the same for the same number."""
    text = f"{writer}-{number}"
    same = uuid.uuid5(uuid.NAMESPACE_OID, text)
    return (
        number * 1_000 + writer,
        Int64((1 << 40) + number * 1_000 + writer),
        text,
        ObjectId(same.bytes[:12]),
        Binary(same.bytes, 0),
        Binary.from_uuid(same),
        datetime.datetime.fromtimestamp(number * 1_000 + writer, datetime.UTC),
        Decimal128(Decimal(f"{number}.{writer:03}1")),
        {"writer": writer, "number": number},
    )[number % 9]


@dataclass
class Journal:
    """What one writer did; an operation is known by the number that its document carries."""

    acknowledged: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)


class Writer(ABC):
    """Writes to a few dozen documents without a pause, until it is stopped."""

    def __init__(self, number: int, seed: int, pause: float) -> None:
        self.journal = Journal()
        self._number = number
        self._dice = random.Random(seed * 1_000 + number)
        self._pause = pause
        self._stopping = threading.Event()
        self._count = 0
        self._thread = OwnedThread(self._run, name=f"writer {number}")

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """End after the operation under way."""
        self._stopping.set()
        assert self._thread.join(60), "a writer does not end"
        assert self._thread.error is None, f"a writer died: {self._thread.error!r}"

    def _run(self) -> None:
        while not self._stopping.wait(self._pause):
            self._count += 1
            name = f"{self._number}.{self._count}"
            try:
                self._operate(name)
            except (PyMongoError, StandError):
                self.journal.unknown.add(name)
                self._stopping.wait(_SECONDS_AFTER_AN_ERROR)
            else:
                self.journal.acknowledged.add(name)

    @abstractmethod
    def _operate(self, name: str) -> None:
        """Do one operation whose events carry the name."""

    def _key(self) -> Any:
        return key_of(self._dice.randrange(_KEYS), self._number)


class ReplicaSetWriter(Writer):
    """Inserts, updates, replaces, upserts, deletes and transactions on a replica set."""

    def __init__(self, uri: str, database: str, number: int, seed: int, pause: float) -> None:
        super().__init__(number, seed, pause)
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri, **CLIENT_OPTIONS)
        self._database = self._client[database]

    def stop(self) -> None:
        """End after the operation under way."""
        super().stop()
        self._client.close()

    def _operate(self, name: str) -> None:
        kind = self._dice.random()
        if kind < 0.1:
            with self._client.start_session() as session, session.start_transaction():
                for _ in range(self._dice.randint(2, 4)):
                    self._upsert(name, session)
        elif kind < 0.25:
            collection, key = self._choose()
            collection.update_one({"_id": key}, {"$set": {"op": name, "last": True}}, upsert=True)
            collection.delete_one({"_id": key})
        else:
            self._upsert(name, None)

    def _upsert(self, name: str, session: Any) -> None:
        collection, key = self._choose()
        if self._dice.random() < 0.4:
            document = {"op": name, "filler": "x" * self._dice.randrange(400)}
            collection.replace_one({"_id": key}, document, upsert=True, session=session)
        else:
            step = {"$set": {"op": name}, "$inc": {"n": 1}, "$push": {"last": {"$each": [name], "$slice": -3}}}
            collection.update_one({"_id": key, "last": {"$ne": True}}, step, upsert=True, session=session)

    def _choose(self) -> tuple[Any, Any]:
        collection = self._database.get_collection(
            self._dice.choice(COLLECTIONS), write_concern=WriteConcern("majority")
        )
        return collection, self._key()


class ShardedWriter(Writer):
    """Updates, replaces, upserts and deletes on a sharded cluster, ranges that move, and a shard that is added."""

    def __init__(
        self,
        cluster: ShardedCluster,
        database: str,
        seed: int,
        pause: float,
        movable: Sequence[tuple[Any, Any]],
        grow: Callable[[], str | None],
    ) -> None:
        super().__init__(1, seed, pause)
        self._cluster = cluster
        self._database = database
        self._movable = movable
        self._grow = grow
        self._grow_at = self._dice.randrange(*_OPERATIONS_BEFORE_A_SHARD)
        self.moves = 0

    def _operate(self, name: str) -> None:
        kind = self._dice.random()
        collection = f"{self._database}.{self._dice.choice(COLLECTIONS)}"
        if kind < 0.01:
            self._move(collection)
        if self._count == self._grow_at:
            self._grow()
        if kind < 0.25:
            key = self._key()
            self._send(collection, key, _update(key, {"$set": {"op": name}}))
            self._send(collection, key, {"delete": None, "deletes": [{"q": {"_id": key}, "limit": 1}]})
        elif kind < 0.5:
            key = self._key()
            self._send(collection, key, _update(key, {"op": name, "filler": "x" * self._dice.randrange(400)}))
        else:
            key = self._key()
            step = {"$set": {"op": name}, "$inc": {"n": 1}, "$push": {"last": {"$each": [name], "$slice": -3}}}
            self._send(collection, key, _update(key, step))

    def _send(self, namespace: str, key: Any, command: dict[str, Any]) -> None:
        (verb, _), *rest = command.items()
        body = {verb: namespace.split(".", 1)[1], **dict(rest), "writeConcern": {"w": "majority", "wtimeout": 10_000}}
        shard = self._cluster.owner_of(namespace, {"_id": key})
        reply = self._cluster.run_versioned(namespace, shard, lambda: body)
        if "writeConcernError" in reply:
            raise StandError(f"not acknowledged by a majority: {reply['writeConcernError']}")

    def _move(self, namespace: str) -> None:
        """Move one of the movable ranges to the shard that does not have it."""
        lower, upper = self._dice.choice(self._movable)
        owner = self._cluster.owner_of(namespace, {"_id": lower})
        target = self._dice.choice([shard for shard in self._cluster.shards if shard != owner])
        self._cluster.move_range(namespace, target, min={"_id": lower}, max={"_id": upper})
        self.moves += 1


def _update(key: Any, change: dict[str, Any]) -> dict[str, Any]:
    return {"update": None, "updates": [{"q": {"_id": key}, "u": change, "upsert": True}]}
