"""The state in a real Redis equals a recomputation over all documents, whatever comes in whatever order."""

from __future__ import annotations

import random
from typing import Any

import bson
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from feature_changes import delete, every_kind, moment, put, version
from feature_recomputation import recomputed
from tailrace.errors import FeaturesMixed, FeaturesUnknown
from tailrace.features import Definition, FeatureStore, read
from tailrace.features.declaration import parse_definition
from tailrace.features.store import Change

NOON = 1_780_000_000_000
"""A moment in summer, in milliseconds."""


class Store:
    """A store whose clock is set by hand."""

    def __init__(self, url: str, definition: Definition) -> None:
        self.redis = redis.Redis.from_url(url)
        self.at = NOON
        self.store = FeatureStore(self.redis, definition, clock=lambda: self.at / 1000)
        self.store.begin()

    def apply(self, *changes: Change) -> Any:
        return self.store.apply(changes)

    def values(self, entity: str, at: int | None = None) -> dict[str, Any]:
        return dict(read(self.redis, entity, self.store.definition.name, at=(at or self.at) / 1000).values)


@pytest.fixture
def store(redis_server):
    made = Store(redis_server.url, every_kind())
    yield made
    made.redis.close()


def transaction(key: int, ms: int, user: str = "u1", amount: float = 10.0, merchant: str = "m") -> dict[str, Any]:
    return {"_id": key, "user": user, "at": moment(ms), "amount": amount, "merchant": merchant}


def nearly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-12, abs=1e-9) if isinstance(value, float) else value


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found == {name: nearly(value) for name, value in expected.items()}


def test_a_transaction_counts_once_however_often_it_comes(store):
    change = put(1, transaction(1, NOON - 5_000))
    for _ in range(3):
        store.apply(change, change)
    assert store.values("u1")["count_1m"] == 1
    assert store.values("u1")["sum_forever"] == 10.0


def test_an_update_replaces_and_a_delete_removes(store):
    store.apply(put(1, transaction(1, NOON - 5_000)), put(2, transaction(2, NOON - 4_000, amount=5.5, merchant="n")))
    store.apply(put(3, transaction(1, NOON - 5_000, amount=1.0)))
    assert store.values("u1")["sum_1m"] == 6.5
    store.apply(delete(4, 1))
    assert_equal(
        store.values("u1"), recomputed(every_kind(), [transaction(2, NOON - 4_000, amount=5.5, merchant="n")], NOON)
    )
    store.apply(delete(5, 2))
    assert_equal(store.values("u1"), recomputed(every_kind(), [], NOON))


def test_an_older_version_changes_nothing_even_after_a_delete(store):
    first, second = put(1, transaction(1, NOON)), put(2, transaction(1, NOON, amount=7.0))
    store.apply(second)
    assert store.apply(first).stale == 1
    assert store.values("u1")["sum_1h"] == 7.0
    store.apply(delete(3, 1))
    store.apply(first, second)
    assert store.values("u1")["count_forever"] == 0


def test_a_document_may_move_to_another_entity(store):
    store.apply(put(1, transaction(1, NOON, user="u1")))
    moved = put(2, transaction(1, NOON, user="u2"))
    store.apply(moved)
    store.apply(moved)
    assert (store.values("u1")["count_1h"], store.values("u2")["count_1h"]) == (0, 1)
    store.apply(delete(3, 1))
    assert store.values("u2")["count_1h"] == 0


def test_an_empty_text_is_an_entity_like_any_other(store):
    store.apply(put(1, transaction(1, NOON, user="")))
    assert store.values("")["count_1h"] == 1
    store.apply(put(2, transaction(1, NOON, user="u1")))
    assert (store.values("")["count_1h"], store.values("u1")["count_1h"]) == (0, 1)


def test_a_crash_between_the_steps_is_mended_by_the_repetition(store, monkeypatch):
    store.apply(put(1, transaction(1, NOON, user="u1")))
    moved = put(2, transaction(1, NOON, user="u2"))
    with monkeypatch.context() as patch:
        patch.setattr(store.store, "_kept", lambda ops: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.apply(moved)
    store.apply(moved)
    assert (store.values("u1")["count_1h"], store.values("u2")["count_1h"]) == (0, 1)


def test_a_drop_is_complete_although_the_connection_breaks_while_documents_are_listed(store, redis_server, fault_proxy):
    store.apply(*(put(number, transaction(number, NOON - 5_000)) for number in range(1, 6)))
    proxy = fault_proxy(redis_server.port)
    with redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), 0)) as client:
        broken = FeatureStore(client, store.store.definition, clock=lambda: NOON / 1000)
        client.ping()
        proxy.cut_after(10)  # the first command from here on lists the documents
        broken.forget_before(version(6), NOON // 1000)
    assert_equal(store.values("u1"), recomputed(every_kind(), [], NOON))


def test_scripts_that_redis_forgot_are_given_again(store):
    store.apply(put(1, transaction(1, NOON)))
    store.redis.script_flush()
    store.apply(put(2, transaction(2, NOON)))
    assert store.values("u1")["count_1h"] == 2


def test_values_decay_while_nothing_comes(store):
    store.apply(put(1, transaction(1, NOON)), put(2, transaction(2, NOON + 30_000)))
    assert store.values("u1", NOON)["count_1m"] == 1, "an event of the future counts when its time has come"
    assert store.values("u1", NOON + 30_000)["count_1m"] == 2
    assert store.values("u1", NOON + 59_999)["count_1m"] == 2
    assert store.values("u1", NOON + 60_000)["count_1m"] == 1
    assert store.values("u1", NOON + 90_000)["count_1m"] == 0
    assert store.values("u1", NOON + 90_000)["since_1h"] == pytest.approx(60.0)
    assert store.values("u1", NOON + 45_000)["count_1m"] == 2, "and back, for a reader whose clock is behind"


def test_today_ends_at_midnight_of_its_time_zone(store):
    berlin_midnight = 1_780_005_600_000  # 2026-05-29T00:00+02:00
    store.at = berlin_midnight - 10
    store.apply(put(1, transaction(1, berlin_midnight - 1_000)))
    assert store.values("u1")["count_today"] == 1
    assert store.values("u1", berlin_midnight)["count_today"] == 0
    assert store.values("u1", berlin_midnight)["count_1h"] == 1


def test_a_late_event_lands_in_its_own_window(store):
    store.apply(put(1, transaction(1, NOON)), put(2, transaction(2, NOON - 1_800_000, merchant="late")))
    values = store.values("u1")
    assert (values["count_1m"], values["count_1h"], values["last_1h"]) == (1, 2, "m")


def test_updates_without_a_document_continue_what_is_known(store):
    store.apply(put(1, transaction(1, NOON)))
    update = bson.encode({"updatedFields": {"amount": 2.5}, "removedFields": ["merchant"]})
    change = Change("1", version(2), update=update, as_of=2)
    store.apply(change)
    store.apply(change)
    values = store.values("u1")
    assert (values["sum_1h"], values["distinct_1h"], values["count_1h"]) == (2.5, 0, 1)
    unknown = store.apply(Change("99", version(3), update=update, as_of=3))
    assert unknown.unknown == 1


def test_random_changes_in_random_order_equal_a_recomputation(store):
    chance = random.Random(5)
    documents: dict[int, dict[str, Any]] = {}
    history: list[Change] = []
    for number in range(1, 400):
        key = chance.randrange(60)
        if key in documents and chance.random() < 0.3:
            del documents[key]
            history.append(delete(number, key))
            continue
        age = chance.choice([5_000, 120_000, 4_000_000, 100_000_000])
        documents[key] = transaction(
            key,
            NOON - chance.randrange(age),
            user=f"u{chance.randrange(3)}",
            amount=round(chance.uniform(-50, 500), 2),
            merchant=f"m{chance.randrange(9)}",
        )
        history.append(put(number, documents[key]))
    chance.shuffle(history)
    while history:
        batch, history = history[:37], history[37:]
        store.apply(*batch)
        store.apply(*batch[::3])
        store.at += 700
    for user in ("u0", "u1", "u2"):
        mine = [document for document in documents.values() if document["user"] == user]
        for later in (0, 61_000, 3_700_000, 90_000_000):
            at = store.at + later
            assert_equal(store.values(user, at), recomputed(every_kind(), mine, at))


def test_every_hash_says_how_new_it_is(store):
    store.at = 2_000
    store.apply(put(1, transaction(1, 0)))
    found = read(store.redis, "u1", "test", at=2.0)
    assert (found.as_of.timestamp(), found.updated_at.timestamp(), found.freshness) == (1.0, 2.0, 1.0)
    assert found.position == version(1)
    stored = store.redis.hgetall("test:u1:features")
    assert {b"as_of", b"updated_at", b"freshness_ms", b"position"} < stored.keys()


def test_state_is_bounded_without_forever(redis_server):
    form = {"name": "bounded", "namespace": "shop.tx", "entity": "user", "time": "at", "lateness": "1h"}
    features = [{"name": "n", "kind": "count", "window": "1h"}]
    store = Store(redis_server.url, parse_definition({**form, "feature": features}))
    for number in range(50):
        store.at = NOON + number * 600_000
        store.apply(put(number + 1, transaction(number, store.at)))
    assert store.values("u1")["n"] == 6
    assert store.redis.hlen("bounded:u1:rows") <= 13, "two hours of ten-minute events are kept"
    assert all(store.redis.pttl(key) > 0 for key in store.redis.keys("bounded:*") if not key.endswith(b"definition"))
    store.apply(put(100, transaction(100, NOON - 10**9)))
    assert store.values("u1")["n"] == 6, "an event behind the watermark changes nothing"
    store.redis.close()


def test_approximate_counts_are_close_and_can_go_down(redis_server):
    form = {"name": "approx", "namespace": "shop.tx", "entity": "user", "time": "at"}
    features = [{"name": "n", "kind": "distinct", "of": "merchant", "approximate": True}]
    store = Store(redis_server.url, parse_definition({**form, "feature": features}))
    store.apply(*(put(n + 1, transaction(n, NOON, merchant=f"m{n}")) for n in range(2_000)))
    assert store.values("u1")["n"] == pytest.approx(2_000, rel=0.05)
    store.apply(*(delete(n + 5_000, n) for n in range(1_000)))
    assert store.values("u1")["n"] == pytest.approx(1_000, rel=0.05)
    store.redis.close()


def test_another_definition_under_the_same_name_is_refused(store):
    with pytest.raises(FeaturesMixed):
        FeatureStore(store.redis, every_kind(lateness="2h")).begin()
    store.store.begin()
    with pytest.raises(FeaturesUnknown):
        read(store.redis, "u1", "nobody")


def test_an_entity_without_events_has_zeros(store):
    values = store.values("nobody")
    assert (values["count_1h"], values["sum_1h"], values["mean_1h"], values["last_1h"]) == (0, 0.0, None, None)
    assert not store.redis.keys("test:nobody:*")
