"""No document that a server stores stops the features: a value that cannot be kept is like one that is not there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pytest
import redis
from bson import json_util

import hostile_bson
from tailrace import raw
from tailrace.errors import BsonMalformed
from tailrace.features import Definition, FeatureStore, read
from tailrace.features.changes import Collected
from tailrace.features.contribution import updated, values_of
from tailrace.features.declaration import parse_definition
from tailrace.features.replay import Replay
from tailrace.token import ResumeToken

NOON = 1_780_000_000_000
KINDS = ("sum", "mean", "min", "max", "stddev", "last", "distinct", "since_last")
PATHS = ("v", "w", "a")


def definition(**more: str) -> Definition:
    """Every kind of feature over the field `v`, with and without a condition."""
    features: list[dict[str, Any]] = [{"name": "n", "kind": "count", "window": "1h"}]
    features += [{"name": kind, "kind": kind, "of": "v"} for kind in KINDS if kind != "since_last"]
    features += [{"name": "matching", "kind": "count", "where": {"v": {"$gt": 1}}}]
    form = {"name": "odd", "namespace": "shop.tx", "entity": "user", "time": "at", "feature": features, **more}
    return parse_definition(form)


def elements() -> list[tuple[str, bytes]]:
    found = []
    for label, element in hostile_bson.elements():
        try:
            raw.validate(raw.document(element))
        except BsonMalformed:
            continue
        found.append((label, element))
    return found


def event(number: int, operation: str, **parts: bytes) -> bytes:
    time = bson.Timestamp(NOON // 1000, number)
    head = {
        "_id": {"_data": ResumeToken.high_water_mark(time).hex},
        "operationType": operation,
        "clusterTime": time,
        "ns": {"db": "shop", "coll": "tx"},
        "documentKey": {"_id": 1},
    }
    return raw.append(
        bson.encode(head), *(raw.element(raw.DOCUMENT, name.encode(), part) for name, part in parts.items())
    )


@pytest.mark.parametrize("used_as", ["feature", "entity", "time"])
def test_every_value_in_every_place(redis_server: Any, used_as: str) -> None:
    chosen = definition(**({} if used_as == "feature" else {used_as: "v"}))
    client = redis.Redis.from_url(redis_server.url)
    client.flushdb()
    store = FeatureStore(client, chosen, clock=lambda: NOON / 1000)
    store.begin()
    replayed = Replay(chosen)
    plain = bson.encode({"_id": 1, "user": "u", "at": datetime.fromtimestamp(NOON / 1000, UTC), "v": 1})
    number = 0
    for label, element in elements():
        collected = Collected(chosen)
        update = raw.document(raw.element(raw.DOCUMENT, b"updatedFields", raw.document(element)))
        inserted = raw.append(raw.without(plain, b"v"), element)
        for operation, parts in (
            ("replace", {"fullDocument": plain}),
            ("update", {"updateDescription": update}),
            ("replace", {"fullDocument": inserted}),
        ):
            number += 1
            made = event(number, operation, **parts)
            collected._take(made)
            replayed.apply(made)
        outcome = store.apply(collected.changes)
        assert outcome.unknown == 0, label
    if used_as == "feature":
        assert read(client, "u", "odd", at=NOON / 1000)["n"] == 1
        replayed.put("shop.tx", plain)
        assert replayed.documents_of("u") == 1
    client.close()


@pytest.mark.parametrize(("label", "element"), [each for each in elements() if each[0] != "a field twice"])
def test_an_update_leaves_what_the_document_then_leaves(label: str, element: bytes) -> None:
    """What is known after an update is what is read of the document after it; no update names a field twice."""
    before = values_of(PATHS, bson.encode({"v": 1, "w": 2}))
    other = raw.element(raw.INT32, b"w", raw.int32(3))
    changed = raw.element(raw.DOCUMENT, b"updatedFields", raw.document(element, other))
    removed = raw.element(raw.ARRAY, b"removedFields", raw.array([raw.Value(raw.STRING, raw.string(b"\xff"))]))
    known = updated(before, raw.document(changed, removed), PATHS)
    after = values_of(PATHS, raw.document(element, other))
    if b"v" not in dict.fromkeys(name for _, name, _, _ in raw.elements(raw.document(element))):
        after = {"v": 1, **after}
    assert json_util.dumps(known) == json_util.dumps({name: after[name] for name in sorted(after)}), label
