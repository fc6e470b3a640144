"""A load of transactions, a definition for them, and what MongoDB itself says about them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from pymongo.collection import Collection

from tailrace.features import Definition, read
from tailrace.features.declaration import parse_definition

USERS = [f"u{number}" for number in range(4)]


FEATURES: list[dict[str, str]] = [
    {"name": "n_1m", "kind": "count", "window": "1m"},
    {"name": "n_1h", "kind": "count", "window": "1h"},
    {"name": "sum_1h", "kind": "sum", "of": "amount", "window": "1h"},
    {"name": "max_1h", "kind": "max", "of": "amount", "window": "1h"},
    {"name": "merchants_today", "kind": "distinct", "of": "merchant", "window": "today"},
    {"name": "mean", "kind": "mean", "of": "amount", "window": "forever"},
    {"name": "min", "kind": "min", "of": "amount", "window": "forever"},
    {"name": "n", "kind": "count", "window": "forever"},
]


def transactions(namespace: str, name: str) -> Definition:
    return parse_definition(_form(namespace, name))


def transactions_toml(namespace: str, name: str) -> str:
    """The same definition as a file has it."""
    form = _form(namespace, name)
    tables = "".join(f"[[feature]]\n{_lines(one)}" for one in form.pop("feature"))
    return _lines(form) + tables


def _form(namespace: str, name: str) -> dict[str, Any]:
    place = {"name": name, "namespace": namespace, "entity": "user", "time": "at", "time_zone": "America/New_York"}
    return {**place, "feature": FEATURES}


def _lines(values: dict[str, str]) -> str:
    return "".join(f'{key} = "{value}"\n' for key, value in values.items())


def aggregated(collection: Collection[Any], user: str, at: datetime) -> dict[str, Any]:
    """What MongoDB says about a user at a moment."""
    midnight = {"$dateTrunc": {"date": at, "unit": "day", "timezone": "America/New_York"}}
    today = {"$and": [{"$gte": ["$at", midnight]}, {"$lte": ["$at", at]}]}

    def within(length: timedelta) -> dict[str, Any]:
        return {"$and": [{"$gt": ["$at", at - length]}, {"$lte": ["$at", at]}]}

    minute, hour = within(timedelta(minutes=1)), within(timedelta(hours=1))
    group = {
        "_id": None,
        "n_1m": {"$sum": {"$cond": [minute, 1, 0]}},
        "n_1h": {"$sum": {"$cond": [hour, 1, 0]}},
        "sum_1h": {"$sum": {"$cond": [hour, "$amount", 0]}},
        "max_1h": {"$max": {"$cond": [hour, "$amount", None]}},
        "merchants": {"$addToSet": {"$cond": [today, "$merchant", None]}},
        "mean": {"$avg": "$amount"},
        "min": {"$min": "$amount"},
        "n": {"$sum": 1},
    }
    nothing = {"n_1m": 0, "n_1h": 0, "sum_1h": 0.0, "max_1h": None, "merchants": [], "mean": None, "min": None, "n": 0}
    found = next(iter(collection.aggregate([{"$match": {"user": user}}, {"$group": group}])), nothing)
    merchants = [merchant for merchant in found.pop("merchants") if merchant is not None]
    found.pop("_id", None)
    return {**found, "merchants_today": len(merchants)}


def equal_now(client: redis.Redis, collection: Collection[Any], name: str) -> bool:
    """Whether the features of every user are those of the aggregation, at one moment."""
    return not differences(client, collection, name)


def differences(client: redis.Redis, collection: Collection[Any], name: str) -> list[tuple[str, str, Any, Any]]:
    """Give user, feature, value and what the aggregation says, where these differ at one moment."""
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(milliseconds=500)
    found = []
    for user in USERS:
        values = read(client, user, name, at=at.timestamp()).values
        expected = aggregated(collection, user, at)
        found += [(user, key, values[key], value) for key, value in expected.items() if values[key] != nearly(value)]
    return found


def nearly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-12, abs=1e-9) if isinstance(value, float) else value


class Load:
    """Inserts, updates, deletes, moves between users, and events that come late."""

    def __init__(self, collection: Collection[Any], seed: int) -> None:
        self._collection = collection
        self._chance = random.Random(seed)
        self._next = 0

    def run(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        chance, kind = self._chance, self._chance.random()
        key = chance.randrange(self._next) if self._next else None
        if key is None or kind < 0.6:
            late = chance.choice([0, 0, 0, 90, 4_000, 100_000])
            at = datetime.now(UTC) - timedelta(seconds=chance.random() * 10 + late)
            amount, merchant = round(chance.uniform(1, 900), 2), f"m{chance.randrange(7)}"
            document = {"user": chance.choice(USERS), "amount": amount, "merchant": merchant, "at": at}
            self._next += 1
            self._collection.insert_one({"_id": self._next - 1, **document})
        elif kind < 0.8:
            change = chance.choice([{"amount": round(chance.uniform(1, 900), 2)}, {"user": chance.choice(USERS)}])
            self._collection.update_one({"_id": key}, {"$set": change})
        else:
            self._collection.delete_one({"_id": key})
