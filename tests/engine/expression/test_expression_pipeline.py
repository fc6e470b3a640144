"""What is known of a pipeline before an event is built, and what it leaves alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Int64, Timestamp

from tailrace.engine.expression import Pipeline, compile_pipeline, values
from tailrace.engine.expression.values import Document


def pipeline(*stages: Any, **options: Any) -> Pipeline:
    return compile_pipeline(stages, server_version="6.0.5", **options)


def run(stages: list[Any], event: dict[str, Any], **options: Any) -> dict[str, Any] | None:
    result = pipeline(*stages, **options)(bson.encode(event))
    return None if result is None else bson.decode(result)


EVENT = bson.encode(
    {
        "_id": {"_data": "82"},
        "operationType": "insert",
        "clusterTime": Timestamp(1, 1),
        "fullDocument": {"_id": 1, "n": 5},
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": 1},
    }
)


def test_an_event_that_only_passes_is_the_same_object() -> None:
    assert pipeline({"$match": {"operationType": "insert"}})(EVENT) is EVENT
    assert pipeline({"$match": {"operationType": "delete"}})(EVENT) is None
    assert pipeline()(EVENT) is EVENT


def test_no_stages_are_the_identity() -> None:
    assert pipeline().is_identity
    assert not pipeline({"$match": {}}).is_identity


def test_the_header_filter_is_what_the_match_says_of_operation_and_namespace() -> None:
    header_filter = pipeline(
        {"$match": {"operationType": {"$in": ["insert", "update"]}, "ns.coll": "orders", "fullDocument.n": {"$gt": 3}}}
    ).header_filter
    assert header_filter is not None
    assert header_filter("insert", "shop", "orders")
    assert not header_filter("insert", "shop", "carts")
    assert not header_filter("delete", "shop", "orders")
    assert not header_filter("dropDatabase", "shop", None)


def test_no_header_filter_without_a_leading_match_on_it() -> None:
    assert pipeline({"$match": {"fullDocument.n": 1}}).header_filter is None
    assert pipeline({"$project": {"ns": "$to"}}, {"$match": {"ns.coll": "x"}}).header_filter is None
    assert pipeline({"$match": {"$or": [{"ns.coll": "x"}, {"fullDocument.n": 1}]}}).header_filter is None


def test_the_partial_filter_uses_the_conditions_on_the_known_fields_alone() -> None:
    stages = [{"$match": {"documentKey._id": 1, "fullDocument.n": 99}}, {"$match": {"operationType": "insert"}}]
    may_pass = pipeline(*stages).partial_filter(["operationType", "documentKey"])
    assert may_pass is not None
    assert may_pass(bson.encode({"operationType": "insert", "documentKey": {"_id": 1.0}}))
    assert not may_pass(bson.encode({"operationType": "insert", "documentKey": {"_id": 2}}))
    assert pipeline(*stages).partial_filter(["clusterTime"]) is None


def test_a_random_condition_is_asked_once_only() -> None:
    draw = {"$match": {"$expr": {"$and": [{"$eq": ["$operationType", "insert"]}, {"$lt": [{"$rand": {}}, 0.5]}]}}}
    assert pipeline(draw).partial_filter(["operationType"]) is None


@pytest.mark.parametrize(
    ("stages", "fields"),
    [
        ([{"$match": {"ns.coll": "x"}}], None),
        ([{"$project": {"a": "$b.c", "operationType": 1}}], {"_id", "a", "b", "operationType"}),
        ([{"$match": {"ns.coll": "x"}}, {"$project": {"_id": 0, "d": 1}}], {"ns", "d"}),
        ([{"$project": {"a": "$$ROOT"}}], None),
        ([{"$replaceWith": {"k": "$documentKey._id"}}], {"documentKey"}),
        ([{"$addFields": {"a": 1}}], None),
    ],
)
def test_the_fields_that_matter(stages: list[Any], fields: set[str] | None) -> None:
    found = pipeline(*stages).fields
    if fields is None:
        assert found is None
    else:
        assert found is not None
        assert fields - {"a"} <= found


def test_a_filter_decodes_nothing_it_does_not_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    match = pipeline({"$match": {"ns.coll": "orders", "documentKey._id": 1}})
    decoded: list[int] = []
    original = values.decode
    monkeypatch.setattr(values, "decode", lambda doc, *span: decoded.append(span[0]) or original(doc, *span))
    assert match(EVENT) is EVENT
    # Two documents and two scalars: `ns`, `coll`, `documentKey`, `_id`.
    assert len(decoded) == 4


def test_now_and_cluster_time_are_those_of_the_stream() -> None:
    now = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
    stage = {"$project": {"_id": 0, "now": "$$NOW", "time": "$$CLUSTER_TIME"}}
    result = run([stage], {"_id": 1}, now=now, cluster_time=Timestamp(5, 6))
    assert result == {"now": now.replace(tzinfo=None), "time": Timestamp(5, 6)}


def test_untouched_fields_keep_their_bytes() -> None:
    event = {"_id": 1, "long": Int64(1), "deep": {"a": [1, Int64(2), 3.0]}}
    result = pipeline({"$set": {"new": 1}})(bson.encode(event))
    assert result == bson.encode({**event, "new": 1})


def test_a_field_that_was_removed_comes_back_in_its_place() -> None:
    document = Document(bson.encode({"a": 1, "b": 2}))
    document.set(b"a", 5)
    assert document.to_bytes() == bson.encode({"a": 5, "b": 2})
    assert run([{"$set": {"a": "$$REMOVE"}}, {"$set": {"z": 1, "a": 2}}], {"a": 1, "b": 2}) == {"a": 2, "b": 2, "z": 1}


def test_text_that_is_not_utf_8_leaves_as_it_came() -> None:
    broken = b"\x13\x00\x00\x00\x02a\x00\x03\x00\x00\x00\xff\xfe\x00\x00"
    broken = len(broken).to_bytes(4, "little") + broken[4:]
    result = pipeline({"$project": {"b": "$a"}})(broken)
    assert result is not None
    assert b"\xff\xfe\x00" in result
