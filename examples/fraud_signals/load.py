"""Card payments in a shop, with the kind of trouble that a fraud team looks for.

    python load.py --uri mongodb://127.0.0.1:27017 --rate 50        writes payments until Ctrl-C
    python load.py --uri mongodb://127.0.0.1:27017 --pay 7 19.99    writes one payment of user 7

A few users pay often and most seldom; each merchant has its usual amounts. Payments move on from authorised over
captured to settled (updates), some are refunded (deletes), and three users now and then test stolen cards: a burst of
small payments at many merchants, then some large ones. The same seed gives the same payments.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId
from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

Document = dict[str, Any]
Operation = InsertOne[Document] | UpdateOne | DeleteOne

NAMESPACE = "shop.transactions"
FRAUDSTERS = (42, 666, 4711)
"""Users that test stolen cards; the first of them begins at once."""

_USERS = 5_000
_MERCHANTS = (
    ("corner-bakery", 6), ("metro", 3), ("north-books", 22), ("city-pharmacy", 15), ("grand-cinema", 24),
    ("old-harbour", 48), ("blue-bikes", 85), ("fresh-market", 35), ("pixel-games", 40), ("top-electronics", 260),
    ("silver-jewels", 420), ("sky-travel", 540), ("green-garden", 30), ("home-works", 75), ("quick-fuel", 52),
)  # fmt: skip
"""Names and usual amounts, the most visited first."""
_NEXT_STATUS = {"authorised": "captured", "captured": "settled"}
_SHARE_OF_PAYMENTS, _SHARE_OF_UPDATES = 0.62, 0.30  # and the rest are refunds
_PAYMENTS_REMEMBERED = 5_000
_CHANCE_OF_A_BURST = 0.001
_TICK = 0.05


@dataclass(slots=True)
class Payment:
    """A payment that may still move on or be refunded."""

    id: ObjectId
    status: str


class Shop:
    """Decides what happens next in the shop; knows nothing of databases or clocks."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._popularity = [1 / rank for rank in range(1, len(_MERCHANTS) + 1)]
        self._payments: list[Payment] = []
        self._burst: deque[Document] = deque(self._stolen_card(FRAUDSTERS[0]))

    def next_operation(self, now: datetime) -> Operation:
        """Give the next write."""
        if not self._burst and self._random.random() < _CHANCE_OF_A_BURST:
            self._burst.extend(self._stolen_card(self._random.choice(FRAUDSTERS)))
        dice = self._random.random()
        if dice < _SHARE_OF_PAYMENTS or len(self._payments) < 20:
            return InsertOne(self._remembered(self._next_payment(), now))
        chosen = self._random.randrange(len(self._payments))
        if dice < _SHARE_OF_PAYMENTS + _SHARE_OF_UPDATES:
            return self._move_on(self._payments[chosen], now)
        return DeleteOne({"_id": self._payments.pop(chosen).id})

    def _next_payment(self) -> Document:
        """While a burst lasts, every second payment is one of it."""
        if self._burst and self._random.random() < 0.5:
            return self._burst.popleft()
        user = int(_USERS ** self._random.random())  # the n-th user pays about 1/n as often as the first
        merchant, usual = self._random.choices(_MERCHANTS, self._popularity)[0]
        return payment(user, round(usual * self._random.lognormvariate(0, 0.5), 2), merchant)

    def _stolen_card(self, user: int) -> list[Document]:
        """Small amounts anywhere show whether the card works; then it is emptied."""
        tries = [
            payment(user, round(self._random.uniform(0.5, 2.5), 2), self._random.choice(_MERCHANTS)[0])
            for _ in range(self._random.randint(10, 30))
        ]
        large = [payment(user, round(self._random.uniform(300, 1_500), 2), "top-electronics") for _ in range(5)]
        return tries + large

    def _remembered(self, document: Document, now: datetime) -> Document:
        self._payments.append(Payment(ObjectId(), document["status"]))
        if len(self._payments) > _PAYMENTS_REMEMBERED:
            self._payments.pop(0)
        return {"_id": self._payments[-1].id, **document, "placed_at": now}

    def _move_on(self, chosen: Payment, now: datetime) -> UpdateOne:
        chosen.status = _NEXT_STATUS.get(chosen.status, "settled")
        return UpdateOne({"_id": chosen.id}, {"$set": {"status": chosen.status, "changed_at": now}})


def payment(user: int, amount: float, merchant: str) -> Document:
    """A new payment, without its time."""
    return {"user_id": user, "amount": amount, "merchant": merchant, "status": "authorised"}


def write(collection: Collection[Document], shop: Shop, rate: float, stopping: threading.Event) -> None:
    """Write at a steady rate until told to stop; what a server refuses while it is away is left out."""
    began, written, told = time.monotonic(), 0, 0
    while not stopping.wait(_TICK):
        due = int((time.monotonic() - began) * rate) - written
        operations = [shop.next_operation(datetime.now(UTC)) for _ in range(min(due, int(rate) or 1))]
        written += due
        try:
            if operations:
                collection.bulk_write(operations)
        except PyMongoError as error:
            print(f"MongoDB did not take {len(operations)} writes: {error}", flush=True)
        if written - told >= 10 * rate:
            print(f"{written:,} writes", flush=True)
            told = written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uri", default=os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/"))
    parser.add_argument("--rate", type=float, default=50, help="writes per second")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--pay", nargs=2, metavar=("USER", "AMOUNT"), help="write one payment and end")
    arguments = parser.parse_args()
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    database, _, name = NAMESPACE.partition(".")
    with MongoClient[Document](arguments.uri, serverSelectionTimeoutMS=10_000) as client:
        collection = client[database][name]
        if arguments.pay is None:
            write(collection, Shop(arguments.seed), arguments.rate, stopping)
            return
        user, amount = int(arguments.pay[0]), float(arguments.pay[1])
        made = collection.insert_one({**payment(user, amount, "by-hand"), "placed_at": datetime.now(UTC)})
        print(f"user {user} paid {amount:.2f}: {made.inserted_id}")


if __name__ == "__main__":
    main()
