"""A definition that uses every word, documents for it, and what MongoDB's own aggregation says of them."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from bson import Decimal128, Int64, json_util
from hypothesis import strategies as st

from feature_changes import moment
from tailrace.features import Definition, Feature, FeatureStore, Kind, read
from tailrace.features.declaration import parse_definition

NOON = 1_780_000_000_000
LANGUAGE = """
name = "language"
time_zone = "Europe/Berlin"
lateness = "2d"

[[source]]
namespace = "shop.payments"
entity = ["user", "card.kind"]
time = "at"

[[source]]
namespace = "shop.logins"
entity = ["who", "card"]
time = "when"

[[feature]]
name = "events"
kind = "count"
windows = ["10m", "1h", "today", "forever"]

[[feature]]
name = "paid_{window}_n"
kind = "count"
from = "shop.payments"
where = { status = "paid", amount = { "$gt" = 10 } }
windows = ["1h", "forever"]

[[feature]]
name = "tagged"
kind = "velocity"
from = "shop.payments"
where = { "items.sku" = { "$in" = ["a", "b"] } }
window = "1h"

[[feature]]
name = "amount"
kind = "sum"
of = "amount"
where = { status = { "$ne" = "refused" } }
windows = ["1h", "forever"]

[[feature]]
name = "avg_amount"
kind = "avg"
of = "amount"
windows = ["1h", "forever"]
default = -1

[[feature]]
name = "spread"
kind = "stddev"
of = "amount"
windows = ["1h", "forever"]

[[feature]]
name = "p90"
kind = "percentile"
q = 0.9
of = "amount"
from = "shop.payments"
windows = ["1h", "forever"]

[[feature]]
name = "least"
kind = "min"
of = "amount"
where = { status = "paid" }

[[feature]]
name = "most"
kind = "max"
of = "amount"
window = "1h"

[[feature]]
name = "skus"
kind = "distinct"
of = "status"
windows = ["1h", "forever"]

[[feature]]
name = "last_amounts"
kind = "last"
n = 3
of = "amount"
where = { status = "paid" }
windows = ["1h", "forever"]

[[feature]]
name = "last_status"
kind = "last"
of = "status"
from = "shop.payments"
default = "none"

[[feature]]
name = "failed"
kind = "count"
from = "shop.logins"
where = { ok = false }
windows = ["1h", "forever"]

[[feature]]
name = "logins"
kind = "count"
from = "shop.logins"
windows = ["1h", "forever"]

[[feature]]
name = "since_failed"
kind = "since_last"
from = "shop.logins"
where = { ok = false }
window = "1h"

[[feature]]
name = "failure_rate"
expression = "failed_1h / logins_1h"

[[feature]]
name = "unusual"
expression = "max((most - avg_amount_forever) / spread_forever, 0) + coalesce(failure_rate, 0.5) * 2"
default = 0
"""
NAMESPACES = ("shop.payments", "shop.logins")


def language(payments: str = NAMESPACES[0], logins: str = NAMESPACES[1], name: str = "language") -> Definition:
    text = LANGUAGE.replace(NAMESPACES[0], payments).replace(NAMESPACES[1], logins)
    return parse_definition({**tomllib.loads(text), "name": name})


AMOUNTS: list[Any] = [0, 1, 9.5, 10, 10.01, 250, -3, Int64(77), Decimal128("12.5"), 1e6, "text", None]
DOCUMENTS = st.fixed_dictionaries(
    {"age": st.sampled_from([0, 1, 300_000, 600_000, 3_599_999, 3_600_000, 20_000_000, 100_000_000, 500_000_000])},
    optional={
        "user": st.sampled_from(["u1", "u2", 5]),
        "card": st.sampled_from(["visa", 7]),
        "amount": st.sampled_from(AMOUNTS),
        "status": st.sampled_from(["paid", "refused", "open"]),
        "items": st.sampled_from([[{"sku": "a"}], [{"sku": "c"}, {"sku": "b"}], [], {"sku": "b"}, "b"]),
        "ok": st.booleans(),
    },
)
STEPS = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.integers(0, 5), st.one_of(st.none(), DOCUMENTS)), min_size=1, max_size=25
)


def document_of(kind: int, key: int, drawn: dict[str, Any]) -> dict[str, Any]:
    """A payment or a login; a login names its entity and time by other fields."""
    time = moment(NOON - drawn["age"])
    rest = {name: value for name, value in drawn.items() if name not in ("age", "user", "card")}
    if kind == 0:
        card = {"card": {"kind": drawn["card"]}} if "card" in drawn else {}
        return {"_id": key, "at": time, **{k: drawn[k] for k in ("user",) if k in drawn}, **card, **rest}
    names = {new: drawn[old] for old, new in (("user", "who"), ("card", "card")) if old in drawn}
    return {"_id": key, "when": time, **names, **rest}


ENTITIES = [(user, card) for user in ("u1", "u2", 5) for card in ("visa", 7)]


def in_mongodb(database: Any, definition: Definition, feature: Feature, entity: Sequence[Any], at: int) -> Any:
    """What MongoDB says a feature is."""
    span = feature.window.span(at)
    stages: list[dict[str, Any]] = []
    for number, source in enumerate(definition.sources):
        if feature.namespace not in ("", source.namespace):
            continue
        match: dict[str, Any] = dict(zip(source.entity_fields, entity, strict=True))
        if not feature.window.is_forever:
            match[source.time] = {"$gt": moment(span.lower), "$lte": moment(span.upper)}
        where = json_util.loads(feature.where) if feature.where else {}
        own = [
            {"$match": {"$and": [match, where]}},
            {"$set": {"time": f"${source.time}", "source": number, "v": f"${feature.of or 'none'}"}},
        ]
        name = source.namespace.partition(".")[2]
        stages += own if not stages and number == 0 else [{"$unionWith": {"coll": name, "pipeline": own}}]
    first = definition.sources[0].namespace.partition(".")[2]
    if "$unionWith" in stages[0]:
        stages.insert(0, {"$match": {"_id": {"$exists": False}}})
    stages.append({"$sort": {"time": -1, "source": -1, "_id": -1}})
    found = list(database[first].aggregate(stages))
    is_number = {"$in": [{"$type": "$v"}, ["int", "long", "double", "decimal"]]}
    numbers = [{"$match": {"$expr": is_number}}, {"$set": {"v": {"$toDouble": "$v"}}}]

    def grouped(accumulator: dict[str, Any]) -> Any:
        some = list(database[first].aggregate([*stages, *numbers, {"$group": {"_id": None, "x": accumulator}}]))
        return some[0]["x"] if some else None

    if feature.kind is Kind.COUNT:
        return len(found)
    if feature.kind is Kind.VELOCITY:
        return len(found) * 60_000 / feature.window.length
    if feature.kind is Kind.SINCE_LAST:
        newest = found[0]["time"].replace(tzinfo=UTC).timestamp() * 1000 if found else None
        return None if newest is None else (at - newest) / 1000
    if feature.kind is Kind.LAST:
        values = [plain(one.get("v")) for one in found]
        return values[: feature.n] if feature.n else (values[0] if values else None)
    if feature.kind is Kind.DISTINCT:
        return len({str(one["v"]) for one in found if one.get("v") is not None})
    if feature.kind is Kind.PERCENTILE:
        values = sorted(grouped({"$push": "$v"}) or [])
        return values[max(-int(-feature.q * len(values) // 1), 1) - 1] if values else None
    names = {Kind.SUM: "$sum", Kind.MEAN: "$avg", Kind.STDDEV: "$stdDevSamp", Kind.MIN: "$min", Kind.MAX: "$max"}
    value = grouped({names[feature.kind]: "$v"})
    return value or 0.0 if feature.kind is Kind.SUM else value


def plain(value: Any) -> Any:
    return {"$numberDecimal": str(value)} if isinstance(value, Decimal128) else value


def expected_of(database: Any, definition: Definition, entity: Sequence[Any], at: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for feature in definition.features:
        if feature.kind is Kind.EXPRESSION:
            continue
        value = in_mongodb(database, definition, feature, entity, at)
        values[feature.name] = feature.default if value is None else value
    rate = values["failed_1h"] / values["logins_1h"] if values["logins_1h"] else None
    spread, most = values["spread_forever"], values["most"]
    unusual = (
        max((most - values["avg_amount_forever"]) / spread, 0) + (0.5 if rate is None else rate) * 2
        if spread and most is not None
        else 0
    )
    return {**values, "failure_rate": rate, "unusual": unusual}


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    close = {name: approximately(name, value) for name, value in expected.items()}
    assert found == close


def approximately(name: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if name.startswith("p90"):
        return pytest.approx(value, rel=0.01 + 1e-9, abs=1e-9)
    return pytest.approx(value, rel=1e-9, abs=1e-6)


class Both:
    """Collections in a real MongoDB, and their features in a real Redis."""

    def __init__(self, database: Any, url: str, name: str = "language") -> None:
        self.database = database
        self.collections = [database.payments, database.logins]
        self.definition = language(f"{database.name}.payments", f"{database.name}.logins", name)
        self.redis = redis.Redis.from_url(url)
        self.at = NOON
        self.store = FeatureStore(self.redis, self.definition, clock=lambda: self.at / 1000)
        self.store.begin()

    def values(self, entity: tuple[Any, ...], at: int) -> dict[str, Any]:
        return dict(read(self.redis, entity, self.definition.name, at=at / 1000).values)

    def assert_equal(self, *moments: int) -> None:
        for entity in ENTITIES:
            for at in moments:
                assert_equal(self.values(entity, at), expected_of(self.database, self.definition, entity, at))


def change_something(both: Both, chance: random.Random, number: int) -> None:
    kind, key = chance.randrange(2), chance.randrange(12)
    collection = both.collections[kind]
    drawn = {
        "age": 0, "user": chance.choice(["u1", "u2", 5]), "card": chance.choice(["visa", 7]),
        "amount": chance.choice(AMOUNTS), "status": chance.choice(["paid", "refused"]), "ok": chance.random() < 0.5,
        "items": [{"sku": chance.choice("abc")}],
    }  # fmt: skip
    time = datetime.now(UTC) - timedelta(seconds=chance.choice([1, 700, 4_000, 90_000]))
    document = {**document_of(kind, key, drawn), "at" if kind == 0 else "when": time}
    if number < 30 or chance.random() < 0.3:
        collection.replace_one({"_id": key}, document, upsert=True)
    elif chance.random() < 0.2:
        collection.delete_one({"_id": key})
    else:
        name = chance.choice(["amount", "status", "ok", "items"])
        collection.update_one({"_id": key}, {"$set": {name: document[name]}})
        collection.update_one({"_id": key}, {"$push": {"items": {"sku": chance.choice("abc")}}})
        collection.update_one({"_id": key, "items.0": {"$exists": True}}, {"$set": {"items.0.sku": "c"}})
        collection.update_one({"_id": key}, chance.choice([{"$unset": {"status": 1}}, {"$inc": {"visits": 1}}]))
