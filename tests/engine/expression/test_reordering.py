"""A `$match` overtakes the same stages as on a real server: shown by stages that fail when they are reached."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from pymongo.errors import OperationFailure

from tailrace.engine.expression import compile_pipeline
from tailrace.errors import PipelineFailed
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
    except PipelineFailed:
        return "failed"
    return [] if result is None else [bson.decode(result)]


def outcome_there(stages: list[dict[str, Any]], database: Any) -> list[Any] | str:
    try:
        # The first stage keeps the server from moving anything into the query itself.
        return list(database.reordering.aggregate([{"$_internalInhibitOptimization": {}}, *stages]))
    except OperationFailure:
        return "failed"


@pytest.mark.mongodb("4.2.6", "4.4.2", "5.0.4", "6.0.27")
def test_conditions_move_as_on_the_server(mongodb: ReplicaSet, database: Any) -> None:
    database.reordering.insert_one(DOCUMENT)
    here = {name: outcome_here(stages, mongodb.version) for name, stages in STAGES.items()}
    there = {name: outcome_there(stages, database) for name, stages in STAGES.items()}
    assert here == there
    assert {"failed", ()} <= {each if isinstance(each, str) else tuple(each) for each in here.values()}


def test_the_filter_on_the_header_is_found_behind_other_stages() -> None:
    stages = [{"$set": {"fullDocument.x": 1}}, {"$match": {"operationType": "insert", "fullDocument.x": 1}}]
    header_filter = compile_pipeline(stages, server_version="6.0.5").header_filter
    assert header_filter is not None
    assert header_filter("insert", "shop", "orders")
    assert not header_filter("delete", "shop", "orders")
