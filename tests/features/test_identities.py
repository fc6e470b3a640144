"""Which entity a document belongs to, when it happened, and which of two is the last: as MongoDB would say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pytest
import redis
from bson import Decimal128, Int64, ObjectId

from feature_changes import version
from tailrace import raw
from tailrace.capture.formats import recovered_delete, snapshot_event
from tailrace.features import Definition, FeatureStore, read
from tailrace.features.changes import Collected
from tailrace.features.declaration import parse_definition
from tailrace.features.store import Change, Outcome
from tailrace.token import ResumeToken

NOON = 1_780_000_000_000
FEATURES = [
    {"name": "n", "kind": "count", "window": "1h"},
    {"name": "all", "kind": "count"},
    {"name": "last", "kind": "last", "of": "what", "window": "1h"},
    {"name": "kinds", "kind": "distinct", "of": "what"},
]


def definition() -> Definition:
    form = {"name": "ids", "namespace": "shop.tx", "entity": "user", "time": "at", "feature": FEATURES}
    return parse_definition(form)


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server.url) as made:
        yield made


def changes(*documents: dict[str, Any]) -> list[Change]:
    """The changes of inserts, as the job collects them from events."""
    collected = Collected(definition())
    for number, document in enumerate(documents, 1):
        time = bson.Timestamp(NOON // 1000, number)
        event = {
            "_id": {"_data": ResumeToken.high_water_mark(time).hex},
            "operationType": "insert",
            "clusterTime": time,
            "ns": {"db": "shop", "coll": "tx"},
            "documentKey": {"_id": document["_id"]},
            "fullDocument": document,
        }
        collected._take(bson.encode(event))
    return collected.changes


def apply(client: redis.Redis, *documents: dict[str, Any]) -> Outcome:
    store = FeatureStore(client, definition(), clock=lambda: NOON / 1000)
    store.begin()
    return store.apply(changes(*documents))


def at(ms: int = NOON) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def counted(client: redis.Redis, entity: object) -> int:
    found: int = read(client, entity, "ids", at=NOON / 1000)["n"]
    return found


def test_a_drop_with_an_entity_called_like_our_own_keys(client):
    names = ["doc", "doc:1", "progress", "definition", "rows"]
    apply(client, *({"_id": number, "user": name, "at": at()} for number, name in enumerate(names)))
    assert [counted(client, name) for name in names] == [1] * len(names)
    FeatureStore(client, definition(), clock=lambda: NOON / 1000).forget_before("8" + version(1))
    assert [counted(client, name) for name in names] == [0] * len(names)


def test_numbers_are_one_entity_whatever_their_type_and_no_text(client):
    users = [5, 5.0, Int64(5), Decimal128("5"), Decimal128("5.00"), "5", "5", 5.5, Decimal128("5.5"), True, "true"]
    apply(client, *({"_id": number, "user": user, "at": at()} for number, user in enumerate(users)))
    assert [counted(client, user) for user in (5, 5.0, "5", 5.5, True, "true")] == [5, 5, 2, 2, 1, 1]
    some = ObjectId()
    apply(client, {"_id": 99, "user": some, "at": at()})
    assert counted(client, some) == counted(client, str(some)) == 1


def test_of_two_at_one_time_the_greater_id_is_the_last(client):
    keys = [9, 10, 10.5, Int64(2**40), "a", ObjectId("1" * 24)]
    for number in range(1, len(keys) + 1):
        apply(client, *({"_id": key, "user": "u", "at": at(), "what": str(key)} for key in keys[:number]))
        assert read(client, "u", "ids", at=NOON / 1000)["last"] == str(keys[number - 1])


def test_times_of_every_kind_count_and_others_are_reported(client):
    times = [
        at(),
        NOON,
        NOON // 1000,
        NOON / 1000,
        bson.Timestamp(NOON // 1000, 1),
        at().isoformat(),
        "2026-05-28T20:26:40Z",
    ]
    assert at() == datetime(2026, 5, 28, 20, 26, 40, tzinfo=UTC)
    outcome = apply(client, *({"_id": number, "user": "u", "at": time} for number, time in enumerate(times)))
    assert (counted(client, "u"), outcome.untimed) == (len(times), 0)
    odd = ["?", [], None]
    outcome = apply(client, *({"_id": f"x{number}", "user": "u", "at": time} for number, time in enumerate(odd)))
    assert (counted(client, "u"), outcome.untimed) == (len(times), 3)
    assert read(client, "u", "ids", at=NOON / 1000)["all"] == len(times) + 3


def test_a_text_that_is_no_utf8_is_left_out_and_nothing_else(client):
    broken = (3).to_bytes(4, "little") + b"\xff\xfe\0"
    fields = raw.body(bson.encode({"_id": 1, "user": "u", "at": at()}))
    document = raw.document(fields, raw.element(raw.STRING, b"what", broken))
    store = FeatureStore(client, definition(), clock=lambda: NOON / 1000)
    store.begin()
    store.apply([Change("1", version(1), document)])
    assert (counted(client, "u"), read(client, "u", "ids", at=NOON / 1000)["kinds"]) == (1, 0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_row_outlives_the_recovered_delete_of_its_old_shard_key(client, order):
    """A shard key changed in a gap: the delete under the old one may be of the time of the row, in another batch."""
    time = bson.Timestamp(NOON // 1000, 7)
    token = ResumeToken.high_water_mark(time).to_bson()
    row = {"_id": 1, "user": "u", "at": datetime.fromtimestamp(NOON / 1000 - 1, UTC), "what": "a"}
    events = [
        snapshot_event("shop.tx", bson.encode(row), token, time),
        recovered_delete("shop.tx", bson.encode({"shard": 5, "_id": 1}), token, time),
    ]
    store = FeatureStore(client, definition(), clock=lambda: NOON / 1000)
    store.begin()
    store.apply(changes({**row, "user": "u"}))
    for place in order:
        collected = Collected(definition())
        collected._take(events[place])
        store.apply(collected.changes)
    assert counted(client, "u") == 1
