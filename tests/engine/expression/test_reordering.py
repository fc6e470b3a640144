"""A `$match` overtakes the same stages as on a real server: shown by stages that fail when they are reached."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from pymongo.errors import OperationFailure

from tailrace.engine.expression import compile_pipeline
from tailrace.errors import TailraceError
from tailrace.stand import ReplicaSet

DOCUMENT = {"_id": 1, "op": "d", "n": 0, "f": {"y": 2}, "list": [1]}
FAILS = {"$divide": [1, "$n"]}
ADDS: dict[str, Any] = {"$addFields": {"x": FAILS}}
STAGES: dict[str, list[dict[str, Any]]] = {
    "another field": [ADDS, {"$match": {"op": "i"}}],
    "one of two": [ADDS, {"$match": {"x": 1, "op": "i"}}],
    "the field itself": [ADDS, {"$match": {"x": 1}}],
    "below the field": [ADDS, {"$match": {"x.y": 1}}],
    "beside a nested field": [{"$set": {"f.x": FAILS}}, {"$match": {"f.y": 1}}],
    "above a nested field": [{"$set": {"f.x": FAILS}}, {"$match": {"f": 1}}],
    "a name that only begins alike": [{"$set": {"f": FAILS}}, {"$match": {"fy": 1}}],
    "a disjunction": [ADDS, {"$match": {"$or": [{"op": 1}, {"x": 1}]}}],
    "a disjunction apart": [ADDS, {"$match": {"$or": [{"op": 1}, {"n": 1}]}}],
    "a negation": [ADDS, {"$match": {"op": {"$ne": "d"}}}],
    "a negated disjunction": [ADDS, {"$match": {"$nor": [{"op": "d"}]}}],
    "existence": [ADDS, {"$match": {"z": {"$exists": True}}}],
    "a type": [ADDS, {"$match": {"op": {"$type": "int"}}}],
    "a size": [ADDS, {"$match": {"list": {"$size": 7}}}],
    "elements": [ADDS, {"$match": {"list": {"$elemMatch": {"$gt": 7}}}}],
    "elements that are documents": [ADDS, {"$match": {"list": {"$elemMatch": {"n": 7}}}}],
    "a size in a conjunction": [ADDS, {"$match": {"$and": [{"list": {"$size": 7}}]}}],
    "a size in a disjunction": [ADDS, {"$match": {"$or": [{"list": {"$size": 7}}, {"op": 1}]}}],
    "not a size": [ADDS, {"$match": {"list": {"$not": {"$size": 1}}}}],
    "neither size": [ADDS, {"$match": {"$nor": [{"list": {"$size": 1}}, {"op": 1}]}}],
    "the size of the field itself": [ADDS, {"$match": {"x": {"$size": 1}}}],
    "the size of a nested list": [{"$set": {"f.x": FAILS}}, {"$match": {"f.y": {"$size": 1}}}],
    "elements of the field itself": [ADDS, {"$match": {"x": {"$elemMatch": {"$gt": 1}}}}],
    "elements beside a nested field": [{"$set": {"f.x": FAILS}}, {"$match": {"f.y": {"$elemMatch": {"$gt": 7}}}}],
    "elements named as the field": [ADDS, {"$match": {"list": {"$elemMatch": {"x": 7}}}}],
    "elements within elements": [ADDS, {"$match": {"list": {"$elemMatch": {"$elemMatch": {"$gt": 7}}}}}],
    "a size within elements": [ADDS, {"$match": {"list": {"$elemMatch": {"x": {"$size": 7}}}}}],
    "an expression within elements": [ADDS, {"$match": {"list": {"$elemMatch": {"x": {"$in": [7, None]}}}}}],
    "all of a list": [ADDS, {"$match": {"list": {"$all": [7, 8]}}}],
    "all elements": [ADDS, {"$match": {"list": {"$all": [{"$elemMatch": {"$gt": 7}}]}}}],
    "one of a list": [ADDS, {"$match": {"op": {"$in": ["i", "u"]}}}],
    "a pattern": [ADDS, {"$match": {"op": {"$regex": "^i"}}}],
    "a remainder": [ADDS, {"$match": {"n": {"$mod": [7, 3]}}}],
    "bits": [ADDS, {"$match": {"n": {"$bitsAllSet": [3]}}}],
    "size of a kept field": [{"$project": {"list": 1, "x": FAILS}}, {"$match": {"list": {"$size": 7}}}],
    "elements of a kept field": [
        {"$project": {"list": 1, "x": FAILS}},
        {"$match": {"list": {"$elemMatch": {"$gt": 7}}}},
    ],
    "a never": [ADDS, {"$match": {"$alwaysFalse": 1}}],
    "an expression without fields": [ADDS, {"$match": {"$expr": {"$eq": [1, 2]}}}],
    "a constant expression": [ADDS, {"$match": {"$expr": False}}],
    "an expression of the time": [ADDS, {"$match": {"$expr": {"$eq": ["$$NOW", 2]}}}],
    "an expression of a variable": [
        ADDS,
        {"$match": {"$expr": {"$let": {"vars": {"v": 1}, "in": {"$eq": ["$$v", 2]}}}}},
    ],
    "a constant expression beside a field": [ADDS, {"$match": {"$expr": {"$eq": [1, 2]}, "x": 1}}],
    "a constant expression in a disjunction": [ADDS, {"$match": {"$or": [{"$expr": {"$eq": [1, 2]}}, {"op": 1}]}}],
    "a sample": [ADDS, {"$match": {"$sampleRate": 0.0}}],
    "an expression of the whole": [ADDS, {"$match": {"$expr": {"$eq": ["$$ROOT", 2]}}}],
    "an expression of the field": [ADDS, {"$match": {"$expr": {"$eq": ["$x", 2]}}}],
    "an expression": [ADDS, {"$match": {"$expr": {"$gt": [{"$strLenBytes": "$op"}, 5]}}}],
    "a kept field": [{"$project": {"op": 1, "x": FAILS}}, {"$match": {"op": "i"}}],
    "below a kept field": [{"$project": {"f": 1, "x": FAILS}}, {"$match": {"f.y": 1}}],
    "above a kept field": [{"$project": {"f.y": 1, "x": FAILS}}, {"$match": {"f": 1}}],
    "a field that is not kept": [{"$project": {"n": 1, "x": FAILS}}, {"$match": {"op": "i"}}],
    "over several stages": [ADDS, {"$unset": "list"}, {"$match": {"op": "i"}}],
    "up to the stage that removes": [ADDS, {"$unset": "op"}, {"$match": {"op": "i"}}],
    "a new root": [
        {"$replaceRoot": {"newRoot": {"$mergeObjects": ["$$ROOT", {"x": FAILS}]}}},
        {"$match": {"op": "i"}},
    ],
}


def outcome_here(stages: list[dict[str, Any]], version: str) -> list[Any] | str:
    try:
        result = compile_pipeline(stages, server_version=version)(bson.encode(DOCUMENT))
    except TailraceError:
        return "failed"
    return [] if result is None else [bson.decode(result)]


def outcome_there(stages: list[dict[str, Any]], database: Any) -> list[Any] | str:
    try:
        # The first stage keeps the server from moving anything into the query itself.
        return list(database.reordering.aggregate([{"$_internalInhibitOptimization": {}}, *stages]))
    except OperationFailure:
        return "failed"


@pytest.mark.mongodb("4.2.6", "4.4.2", "5.0.4", "6.0.27", "7.0.28")
def test_conditions_move_as_on_the_server(mongodb: ReplicaSet, database: Any) -> None:
    database.reordering.insert_one(DOCUMENT)
    here = {name: outcome_here(stages, mongodb.version) for name, stages in STAGES.items()}
    there = {name: outcome_there(stages, database) for name, stages in STAGES.items()}
    apart = {name: (here[name], there[name]) for name in STAGES if here[name] != there[name]}
    assert not apart, apart
    assert {"failed", ()} <= {each if isinstance(each, str) else tuple(each) for each in here.values()}


def test_the_filter_on_the_header_is_found_behind_other_stages() -> None:
    stages = [{"$set": {"fullDocument.x": 1}}, {"$match": {"operationType": "insert", "fullDocument.x": 1}}]
    header_filter = compile_pipeline(stages, server_version="6.0.5").header_filter
    assert header_filter is not None
    assert header_filter("insert", "shop", "orders")
    assert not header_filter("delete", "shop", "orders")
