"""A load generator: orders that are placed, paid, shipped and sometimes cancelled, at a steady rate."""

from __future__ import annotations

import random
import threading
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from tailrace.owned import OwnedThread

Document = dict[str, Any]

_CITIES = ("Aarhus", "Bergen", "Cadiz", "Delft", "Evora")
_NEXT_STATUS = {"placed": "paid", "paid": "shipped", "shipped": "delivered"}
_ORDERS_REMEMBERED = 5_000
_SECONDS_BETWEEN_RETRIES = 0.2


class OrderLoad:
    """Writes orders into `shop.orders` from a thread of its own until it is closed.

    Six writes in ten are inserts, three move an order to its next status, one deletes an order. The same
    seed gives the same orders. A failed write is tried again, so that an election does not end the load.
    """

    def __init__(self, client: MongoClient[Document], *, per_second: float, seed: int = 7) -> None:
        self._orders: Collection[Document] = client["shop"]["orders"]
        self._pause = 1 / per_second
        self._random = random.Random(seed)
        self._open: list[Document] = []
        self._stopping = threading.Event()
        self._thread = OwnedThread(
            self._write_until_stopped, name="order-load", on_death=lambda _: _SECONDS_BETWEEN_RETRIES
        )
        self.written = 0
        self.failed = 0

    def __enter__(self) -> OrderLoad:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(timeout=30)

    def _write_until_stopped(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._pause, time.monotonic() - 1)
            try:
                self._write_once()
            except PyMongoError:
                self.failed += 1
                self._stopping.wait(_SECONDS_BETWEEN_RETRIES)
            else:
                self.written += 1

    def _write_once(self) -> None:
        dice = self._random.random()
        if dice < 0.6 or not self._open:
            self._insert_order()
        elif dice < 0.9:
            self._advance()
        else:
            order = self._open.pop(self._random.randrange(len(self._open)))
            self._orders.delete_one({"_id": order["_id"]})

    def _insert_order(self) -> None:
        order = {
            "user": f"user{int(self._random.paretovariate(1.2)) % 500}",
            "city": self._random.choice(_CITIES),
            "amount": round(self._random.lognormvariate(3.2, 0.8), 2),
            "status": "placed",
            "placed_at": datetime.now(UTC),
        }
        self._orders.insert_one(order)
        self._open.append(order)
        if len(self._open) > _ORDERS_REMEMBERED:
            self._open.pop(0)

    def _advance(self) -> None:
        order = self._random.choice(self._open)
        order["status"] = _NEXT_STATUS.get(order["status"], "placed")
        self._orders.update_one({"_id": order["_id"]}, {"$set": {"status": order["status"]}})
