"""Write orders, pay and ship most of them, cancel a few: `python orders.py MONGODB_URI [COUNT]`."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection

CITIES = ("Bergen", "Lyon", "Porto", "Turku")
ARTICLES = {"kettle": 39.0, "lamp": 24.5, "rug": 119.0, "shelf": 75.0}


def write(orders: Collection[dict[str, Any]], count: int, seed: int = 1) -> None:
    """Place orders and change them later; one in ten is deleted. The same seed makes the same orders."""
    chance = random.Random(seed)
    for _ in range(count):
        lines = [{"article": name, "pieces": chance.randint(1, 3)} for name in chance.sample(sorted(ARTICLES), k=2)]
        order = {
            "placed_at": datetime.now(UTC),
            "status": "placed",
            "customer": {"name": f"customer {chance.randint(1, 50)}", "city": chance.choice(CITIES)},
            "lines": lines,
            "total": sum(ARTICLES[line["article"]] * line["pieces"] for line in lines),
        }
        key = {"_id": orders.insert_one(order).inserted_id}
        if chance.random() < 0.1:
            orders.delete_one(key)
            continue
        for status in ("paid", "shipped")[: chance.choice((0, 1, 1, 2))]:
            orders.update_one(key, {"$set": {"status": status}})


if __name__ == "__main__":
    with MongoClient[dict[str, Any]](sys.argv[1]) as client:
        write(client.shop.orders, int(sys.argv[2]) if len(sys.argv) > 2 else 100)
