"""What is refused when a stream opens, what fails on an event, and with which codes and words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Decimal128, json_util

from tailrace.engine.expression import compile_pipeline
from tailrace.errors import PipelineFailed, StreamRefused


def refusal(*stages: Any, version: str = "6.0.5", database: str | None = None) -> StreamRefused:
    with pytest.raises(StreamRefused) as caught:
        compile_pipeline(stages, server_version=version, database=database)
    return caught.value


@pytest.mark.parametrize(
    ("stage", "code", "words"),
    [
        ({"$group": {"_id": 1}}, 20, "$group is not permitted in a $changeStream pipeline"),
        ({"$unsupported": "foo"}, 40324, "Unrecognized pipeline stage name: '$unsupported'"),
        ({"$match": {"a": {"$geoWithin": {}}}}, 2, "unknown operator: $geoWithin"),
        ({"$match": {"$where": "true"}}, 2, "$where is not allowed in this context"),
        ({"$match": {"$jsonSchema": {"not": "here"}}}, 2, "$jsonSchema"),
        ({"$match": {"$foo": 1}}, 2, "unknown top level operator: $foo"),
        ({"$addFields": {"a": {"$function": {}}}}, 168, "Unrecognized expression '$function'"),
        ({"$project": {"a": {"$function": {}}}}, 31325, "Unknown expression $function"),
        ({"$project": {"a": "$$nowhere"}}, 17276, "Use of undefined variable: nowhere"),
        ({"$project": {"a": {"$add": [1, "x"]}}}, 16554, "Failed to optimize pipeline :: caused by :: $add only"),
        ({"$match": {"a": {"$regex": r"\p{Greek}"}}}, 238, r"regular expressions with '\p' are not supported"),
        ({"$match": {"a": {"$regex": "(?R)"}}}, 238, "'(?' are not supported"),
        ({"$match": {"a": {"$regex": r"a\Cb"}}}, 238, r"'\C' are not supported"),
        ({"a": 1, "b": 2}, 40323, "must contain exactly one field"),
        (5, 14, "must be an object"),
    ],
)  # fmt: skip
def test_refused_when_the_stream_opens(stage: Any, code: int, words: str) -> None:
    error = refusal(stage)
    assert error.server_code == code
    assert words in error.message


@pytest.mark.parametrize(
    ("stage", "since"),
    [
        ({"$addFields": {"a": {"$isNumber": 1}}}, "4.4.2"),
        ({"$addFields": {"a": {"$dateAdd": {"startDate": "$d", "unit": "day", "amount": 1}}}}, "5.0.4"),
        ({"$addFields": {"a": {"$getField": "a"}}}, "5.0.4"),
        ({"$addFields": {"a": {"$sortArray": {"input": "$a", "sortBy": 1}}}}, "6.0.5"),
        ({"$addFields": {"a": {"$tsSecond": "$clusterTime"}}}, "6.0.5"),
    ],
)
def test_an_operator_newer_than_the_server_is_unknown(stage: Any, since: str) -> None:
    for version in ("4.2.6", "4.4.2", "5.0.4", "6.0.5"):
        if version < since:
            assert refusal(stage, version=version).server_code == 168
        else:
            compile_pipeline([stage], server_version=version)


def test_a_parse_error_later_in_the_pipeline_comes_before_a_stage_that_is_not_permitted() -> None:
    assert refusal({"$sort": {"a": 1}}, {"$match": {"$foo": 1}}).server_code == 2
    assert refusal({"$sort": {"a": 1}}, {"$bogus": 1}).server_code == 40324


def test_out_to_an_internal_database_is_refused_as_such() -> None:
    assert refusal({"$out": "x"}, database="admin").server_code == 31321
    assert refusal({"$out": "x"}, database="admin", version="4.2.6").server_code == 20
    assert refusal({"$out": "x"}, database="shop").server_code == 20


def test_splitting_large_events_is_a_stage_since_6_0_9() -> None:
    split = {"$changeStreamSplitLargeEvent": {}}
    assert refusal(split).server_code == 40324
    assert compile_pipeline([split], server_version="6.0.27").splits_large_events
    assert refusal(split, {"$match": {}}, version="6.0.27").server_code == 7182802


def test_an_event_that_cannot_be_computed_fails_with_the_code_of_the_server() -> None:
    pipeline = compile_pipeline([{"$set": {"r": {"$divide": [1, "$n"]}}}], server_version="6.0.5")
    assert bson.decode(pipeline(bson.encode({"n": 4})) or b"") == {"n": 4, "r": 0.25}
    with pytest.raises(PipelineFailed) as caught:
        pipeline(bson.encode({"n": 0}))
    assert caught.value.server_code == 2
    assert caught.value.message == "PlanExecutor error during aggregation :: caused by :: can't $divide by zero"


@pytest.mark.parametrize("name", ["$exp", "$ln", "$log10", "$sin", "$atanh"])
def test_decimals_are_refused_where_only_the_decimal_library_of_the_server_knows_the_last_digit(name: str) -> None:
    pipeline = compile_pipeline([{"$set": {"r": {name: "$n"}}}], server_version="6.0.5")
    assert pipeline(bson.encode({"n": 0.5})) is not None
    with pytest.raises(PipelineFailed, match=r"of a decimal is not supported") as caught:
        pipeline(bson.encode({"n": Decimal128("0.5")}))
    assert caught.value.server_code_name == "NotImplemented"


@pytest.mark.parametrize("version", ["4.2.6", "5.0.4", "6.0.5", "7.0.28"])
def test_recorded_refusals(recordings: Path, version: str) -> None:
    """Pipelines that a server refused on opening are refused with the same code and message."""
    checked = 0
    with gzip.open(recordings / f"{version}.extra.jsonl.gz", "rt") as lines:
        for line in lines:
            record = json.loads(line)
            error = record.get("error")
            if not record.get("id", "").startswith("pl:err") or error["code"] in (73, 280):
                continue
            stages = json_util.loads(json.dumps(record["cmd"]["pipeline"][1:]))
            found = refusal(*stages, version=version, database=record["db"])
            assert (found.server_code, found.message) == (error["code"], error["msg"])
            assert found.server_code_name == error["codeName"]
            checked += 1
    assert checked >= 6
