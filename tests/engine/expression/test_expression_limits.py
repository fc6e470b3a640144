"""What stages may cost: the server's limits on patterns, strings and documents, and the time that a stream is given."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tailrace.engine.expression import compile_pipeline
from tailrace.errors import ChangeStreamError, PipelineUnsupported

Document = dict[str, Any]

_MEGABYTE = "a" * (1 << 20)
_PATTERNS = [
    ("^(a+)+$", "a" * 30 + "b"), ("(a|b)*d", "a" * 2_100 + "d"), ("(a|b)*d", "a" * 1_900 + "d"), ("(x+x+)+y", "x" * 40),
    ("(?s)x*.[yz]", "x" * 1_000), (r"\p{L}+\d", "é1"), (r"\P{Lu}", "A"), ("(?<=ab)c", "abc"), ("(?<!a)c", "ac"),
    ("a++b", "aab"), ("(?>a+)b", "aab"), (r"(?|(a)|(b))\1", "bb"), (r"a\Kb", "ab"), ("a{,2}", "a{,2}"), ("(?i)É", "é"),
    (r"\w\d\s", "é1 "), (r"\R$", "a\r\n"), (r"^b$", "a\nb\nc"), ("(?m)^b$", "a\nb\nc"), ("(?x) a b # c", "ab"),
    (r"\Qa.b\E", "a.b"), (r"[[:alpha:]]", "é"), (r"\bé", "é"), (r"(a)|(b)", "b"), ("x", "y" * 300 + "x"),
    ("(", ""), ("a**", ""), ("[z-a]", ""), ("[a", ""), ("a)", ""), ("\\", ""), ("[[:foo:]]", ""), ("a{99999}", ""),
    ("x{2,1}", ""), ("(?#", ""), ("(?<n", ""), (r"\g{5}", ""), (r"\k<x>", ""), (r"\c", ""), (r"\x{110000}", ""),
    ("(?P<n>a)(?P<n>b)", ""), ("a" * 40_000, ""),
]  # fmt: skip


def _answer_of(database: Database[Any], stages: list[Document]) -> Any:
    try:
        return list(database.c.aggregate([{"$_internalInhibitOptimization": {}}, *stages]))
    except OperationFailure as error:
        return error.code, (error.details or {}).get("errmsg")


def _our_answer(version: str, stages: list[Document], document: Document) -> Any:
    try:
        result = compile_pipeline(stages, server_version=version)(bson.encode(document))
    except ChangeStreamError as error:
        return error.server_code, error.message
    return [] if result is None else [bson.decode(result)]


def _compare(database: Database[Any], stages: list[Document], document: Document) -> None:
    database.c.replace_one({"_id": 1}, document, upsert=True)
    theirs = _answer_of(database, stages)
    ours = _our_answer(database.client.server_info()["version"], stages, document)
    assert ours == theirs, str(stages)[:200]


@pytest.mark.mongodb("4.2.6", "6.0.5")
def test_patterns_have_the_servers_meaning_limits_and_words(database: Database[Any]) -> None:
    for pattern, text in _PATTERNS:
        document = {"_id": 1, "s": text}
        _compare(database, [{"$match": {"s": {"$regex": pattern}}}], document)
        search = {"input": "$s", "regex": {"$literal": pattern}}
        for operator in ("$regexMatch", "$regexFind", "$regexFindAll"):
            _compare(database, [{"$project": {"r": {operator: search}}}], document)


@pytest.mark.parametrize(
    "pattern",
    ["(?R)", "(a(?1)?b)", "(*UTF)a", r"\p{Greek}", "(?C1)a", "(?<=a?)b", r"\N{U+41}", "a{ 1,2}", "(?^i)a", r"a\Cb"],
)
def test_what_the_two_libraries_see_otherwise_is_left_to_the_server(pattern: str) -> None:
    with pytest.raises(PipelineUnsupported):
        compile_pipeline([{"$match": {"a": {"$regex": pattern}}}], server_version="6.0.5")


def _doubled(times: int, value: Any, step: Any) -> Document:
    return {"$reduce": {"input": {"$range": [0, times]}, "initialValue": value, "in": step}}


_TWICE = {"$concat": ["$$value", "$$value"]}
_BUILDERS: list[Any] = [
    {"$strLenBytes": {"$concat": ["$s"] * 15}},
    {"$strLenBytes": {"$concat": ["$s"] * 16}},
    {"$strLenBytes": _doubled(10, "$s", _TWICE)},
    {"$strLenBytes": _doubled(6, "$e", _TWICE)},  # two bytes for each character
    {"$size": {"$split": ["$s", "a"]}},
    {"$size": {"$map": {"input": {"$range": [0, 20]}, "in": {"$concat": ["$s", "x"]}}}},
    _doubled(3, {"a": "$s"}, {"a": "$$value", "b": "$$value"}),
]
_SINCE_4_4 = [
    {"$strLenBytes": {"$replaceAll": {"input": "$s", "find": "a", "replacement": "b" * size}}} for size in (15, 20)
]


@pytest.mark.mongodb("4.2.6", "6.0.5")
def test_builders_have_the_servers_limits(database: Database[Any]) -> None:
    version = database.client.server_info()["version"]
    document = {"_id": 1, "s": _MEGABYTE, "e": "é" * (1 << 18)}
    for builder in [*_BUILDERS, *(_SINCE_4_4 if version > "4.4" else ())]:
        _compare(database, [{"$project": {"r": builder}}], document)


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        (_doubled(30, {"a": "$s"}, {"a": "$$value", "b": "$$value"}), 13548),
        (_doubled(40, ["$s"], {"$concatArrays": ["$$value", "$$value"]}), 146),
        ({"$map": {"input": {"$range": [0, 1_000]}, "in": {"$concat": ["$s", "x"]}}}, 146),
        ({"$map": {"input": {"$range": [0, 100_000]}, "in": ["$s"]}}, 13548),
        ({"$map": {"input": {"$range": [0, 100_000]}, "in": {"$range": [0, {"$strLenCP": "$s"}]}}}, 146),
        ([{"$range": [0, 6_000_000]}] * 8, 146),
    ],
)
def test_the_memory_of_one_event_is_bounded(expression: Any, code: int) -> None:
    stages = [{"$project": {"r": expression}}]
    event = {"_id": 1, "s": _MEGABYTE}
    assert _our_answer("6.0.5", stages, event)[0] == code


@pytest.mark.parametrize(
    "stage",
    [
        {"$match": {"s": {"$regex": "(?s)a*.[yz]"}}},
        {"$project": {"r": {"$regexMatch": {"input": "$s", "regex": "(?s)a*.[xyz]"}}}},
        {"$match": {"$expr": _doubled(10_000, 0, _doubled(10_000, 0, {"$add": ["$$value", {"$strLenCP": "$s"}]}))}},
    ],
)
def test_stages_that_cost_too_much_end_with_the_servers_error(stage: Document) -> None:
    pipeline = compile_pipeline([stage], server_version="6.0.5", seconds=0.2)
    with pytest.raises(ChangeStreamError) as failed:
        pipeline(bson.encode({"s": "a" * 60_000}))
    assert failed.value.server_code == 50
    assert "operation exceeded time limit" in failed.value.message
    compile_pipeline([{"$match": {"s": {"$regex": "(b|a)+c"}}}], server_version="6.0.5", seconds=9)(
        bson.encode({"s": "a" * 500})
    )
