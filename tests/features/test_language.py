"""The language of features: whatever comes in whatever order, Redis says what MongoDB's own aggregation says."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import bson
import orjson
import pyarrow as pa
import pytest
import redis
from bson import Int64
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from feature_changes import moment, version
from feature_language import NOON, STEPS, Both, change_something, document_of, language
from tailrace.errors import SettingsError
from tailrace.features import Definition
from tailrace.features.changes import Collected
from tailrace.features.contribution import bucket_value, entity_of, percentile_bucket, row_of, values_of
from tailrace.features.declaration import parse_definition
from tailrace.features.store import Change, version_before
from tailrace.features.values import computed, typed
from tailrace.raw.cluster_time import ClusterTime


@examples(
    max_examples=10,
    phases=(Phase.explicit, Phase.generate, Phase.target, Phase.shrink),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS, chance=st.randoms(use_true_random=False))
def test_random_changes_in_random_order(database, redis_server, steps, chance):
    """Inserts, replacements and deletes in two collections; applied shuffled, repeated and in batches."""
    redis.Redis.from_url(redis_server.url).flushall()
    both = Both(database, redis_server.url)
    changes = []
    for collection in both.collections:
        collection.drop()
        database.create_collection(collection.name)
    for number, (kind, key, drawn) in enumerate(steps, 1):
        namespace = both.definition.namespaces[1] if kind else ""
        if drawn is None:
            both.collections[kind].delete_one({"_id": key})
            changes.append(Change(f"{key:02x}", version(number), is_delete=True, as_of=number, namespace=namespace))
            continue
        document = document_of(kind, key, drawn)
        both.collections[kind].replace_one({"_id": key}, document, upsert=True)
        data = bson.encode(document)
        changes.append(Change(f"{key:02x}", version(number), data, as_of=number, namespace=namespace))
    chance.shuffle(changes)
    while changes:
        size = chance.randrange(1, 8)
        batch, changes = changes[:size], changes[size:]
        both.store.apply(batch)
        both.store.apply(batch[::2])
        both.at += chance.choice([0, 1, 700])
    both.assert_equal(both.at, both.at + 3_600_000)
    hash_ = both.redis.hgetall('language:["u1","visa"]:features')
    if hash_:  # what others read without us has the expressions too
        shown = {key.decode(): value.decode() for key, value in hash_.items()}
        assert float(shown["unusual"]) == pytest.approx(both.values(("u1", "visa"), both.at)["unusual"])
    both.redis.close()


def test_the_events_of_a_real_stream(database, redis_server):
    """Updates of every form, without documents, shuffled; then one of the collections is dropped."""
    both, chance = Both(database, redis_server.url, "stream"), random.Random(3)
    with database.watch(max_await_time_ms=100) as stream:
        for number in range(150):
            change_something(both, chance, number)
        at = round(datetime.now(UTC).timestamp() * 1000)
        both.at = at
        apply_events(both, stream, chance)
        both.assert_equal(at, at + 1_800_000)
        database.logins.drop()
        database.logins.insert_one({"_id": 1, "who": "u1", "card": "visa", "when": moment(at - 5), "ok": False})
        apply_events(both, stream, chance)
        both.assert_equal(at)
        assert both.values(("u1", "visa"), at)["logins_forever"] == 1
    both.redis.close()


def apply_events(both: Both, stream: Any, chance: random.Random) -> None:
    """What happened to different documents comes in any order, in batches of which some come twice."""
    events = []
    while (event := stream.try_next()) is not None:
        events.append(event)
    while events:
        size = chance.randrange(1, 40)
        some = events[:size]
        events = events[size:]
        chance.shuffle(some)
        collected = Collected(both.definition)
        collected.add(pa.record_batch({"raw": pa.array([bson.encode(one) for one in some], pa.binary())}))
        for namespace, end in collected.ends.items():
            first = both.definition.namespace
            both.store.end_before(
                version_before(end.moment[1]), ClusterTime(end.moment[0]).seconds, namespace.replace(first, "")
            )
        outcome = both.store.apply(collected.changes)
        both.store.apply(collected.changes[::2])
        assert outcome.unknown == 0


@given(steps=STEPS)
def test_the_model_without_a_server_is_a_function_of_the_documents(steps):
    """Rows of documents, computed at a moment: the same however the documents got there."""
    definition, rows = language(), {}
    for number, (kind, key, drawn) in enumerate(steps, 1):
        source = definition.sources[kind]
        if drawn is None:
            rows.pop((kind, key), None)
            continue
        seen = values_of(definition.paths(source), bson.encode(document_of(kind, key, drawn)))
        rows[kind, key] = (entity_of(source, seen), orjson.loads(row_of(definition, source, seen, version(number))))
    mine = sorted((row["t"], key, row) for key, (entity, row) in rows.items() if entity == '["u1","visa"]')
    values = typed(definition, computed(definition, [row for _, _, row in mine], NOON))
    assert values["events_forever"] == len(mine)
    assert values["logins_forever"] == sum(key[0] == 1 for _, key, _ in mine)
    rate = values["failure_rate"]
    assert rate is None or rate == values["failed_1h"] / values["logins_1h"]


@given(st.floats(-1e150, 1e150))
def test_a_percentile_is_within_its_accuracy(number):
    bucket = percentile_bucket(number)
    assert bucket_value(bucket) == pytest.approx(number, rel=0.01 + 1e-9, abs=1.01e-9)
    assert percentile_bucket(-number) == -bucket


@pytest.mark.parametrize(
    ("change", "says", "hint"),
    [
        ({"kind": "cuont"}, "no kind of feature 'cuont'", "Did you mean count?"),
        ({"wher": {}}, "no key wher", "Did you mean where?"),
        ({"kind": "sum"}, "does not say of which field", ""),
        ({"kind": "percentile", "of": "a"}, "without a q", ""),
        ({"kind": "percentile", "of": "a", "q": 95}, "without a q", ""),
        ({"q": 0.5}, "without being one", ""),
        ({"n": 3}, "which only last has", ""),
        ({"where": {"a": {"$gth": 1}}}, "cannot be evaluated", "find()"),
        ({"where": {"$where": "true"}}, "cannot be evaluated", "find()"),
        ({"where": "a > 1"}, "is not a table", ""),
        ({"from": "shop.other"}, "which is not a source", "shop.tx"),
        ({"window": "1h", "windows": ["1m"]}, "has window and windows", ""),
        ({"windows": "1h"}, "no list", ""),
        ({"kind": "expression", "expression": "conut / 2"}, "which is not declared before it", "Did you mean count?"),
        ({"kind": "expression", "expression": "one / 2"}, "which is not declared before it", ""),
        ({"kind": "expression", "expression": "count.real"}, "not arithmetic", "coalesce"),
        ({"kind": "expression", "expression": "__import__('os')"}, "not arithmetic", ""),
        ({"kind": "expression", "expression": "count +"}, "is not an expression", ""),
        ({"kind": "expression", "expression": "count", "window": "1h"}, "which has no window", ""),
        ({"kind": "count", "expression": "count"}, "without being one", ""),
        ({"default": "text"}, "default", ""),
    ],
)
def test_words_that_nobody_knows_are_refused_with_what_was_meant(change, says, hint):
    form = {"name": "d", "namespace": "shop.tx", "entity": "user", "time": "at"}
    features = [{"name": "count", "kind": "count"}, {"name": "one", "kind": "count", **change}]
    with pytest.raises(SettingsError) as refused:
        parse_definition({**form, "feature": features})
    assert says in str(refused.value)
    assert hint in refused.value.hint


def test_a_definition_without_new_words_is_what_it_was(redis_server):
    """State of before goes on: the form that is compared with the one in Redis has not changed."""
    form = {"name": "d", "namespace": "shop.tx", "entity": "user", "time": "at", "lateness": "1h"}
    old = parse_definition({**form, "feature": [{"name": "n", "kind": "sum", "of": "a", "window": "1h"}]})
    assert orjson.loads(old.to_json()) == {
        "name": "d", "namespace": "shop.tx", "entity": "user", "time": "at", "lateness_ms": 3_600_000, "ttl_ms": None,
        "layout": 2,
        "features": [
            {"name": "n", "kind": "sum", "of": "a", "approximate": False,
             "window": {"length": 3_600_000, "time_zone": None}}
        ],
    }  # fmt: skip
    for definition in (old, language()):
        assert Definition.from_json(definition.to_json()) == definition


def test_entities_of_several_fields_have_their_types():
    definition = language()
    source = definition.sources[0]

    def entity(user: Any, kind: Any) -> str | None:
        document = bson.encode({"user": user, "card": {"kind": kind}})
        return entity_of(source, values_of(definition.paths(source), document))

    assert entity(5, "5") == entity(Int64(5), "5") == entity(5.0, "5") == '[5,"5"]'
    assert entity("5", 5) == '["5",5]'
    assert entity('a","b', 1) != entity("a", 'b",1')
    assert entity(5, None) is None
