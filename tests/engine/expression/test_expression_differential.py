"""The compiled stages against a real server: the same documents and stages, the same bytes or the same error code."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.database import Database

from engine.expression.expression_cases import curated_cases
from engine.expression.expression_generator import Generator
from engine.expression.odd_specifications import OddGenerator
from engine.expression.server_answers import Difference, Server, differences
from engine.expression.windows_runtime import STRTOD_NAN, c_runtime, visual_cpp_sort
from tailrace.engine.expression import arrays

_DOCUMENTS = 12
_STAGES_PER_DOCUMENTS = 40


def _server(database: Database[Any]) -> Server:
    return Server(database, database.client.server_info()["version"])


def _report(cases: int, found: Sequence[Difference]) -> None:
    shown = "\n\n".join(map(str, found[:10]))
    assert not found, f"{len(found)} of {cases} cases differ:\n{shown}"


def _compare_curated(server: Server, *, every: int, apart: Sequence[str] = ()) -> int:
    """Compare all stages but those with some operators."""
    cases, found = 0, []
    for stages, documents in curated_cases():
        if _names_one_of(stages, apart):
            continue
        chosen = [bson.encode(document) for document in documents[::every]]
        cases += len(chosen)
        found += differences(server, stages, chosen)
    _report(cases, found)
    return cases


def _names_one_of(stages: Any, operators: Sequence[str]) -> bool:
    return any(f"'{name}'" in repr(stages) for name in operators)


def _compare_random(server: Server, seed: int, wanted: int) -> int:
    make = Generator(seed)
    documents: list[bytes] = []
    cases, round_number, found = 0, 0, []
    while cases < wanted:
        if round_number % _STAGES_PER_DOCUMENTS == 0:
            documents = [make.document(identity) for identity in range(_DOCUMENTS)]
        stages = [make.stage() for _ in range(2 if make.chance(0.15) else 1)]
        found += differences(server, stages, documents)
        cases += len(documents)
        round_number += 1
    _report(cases, found)
    return cases


def test_curated_cases_come_out_as_on_the_server(database: Database[Any]) -> None:
    assert _compare_curated(_server(database), every=1) > 20_000


def test_random_stages_come_out_as_on_the_server(database: Database[Any]) -> None:
    assert _compare_random(_server(database), seed=11, wanted=12_000) >= 12_000


def test_odd_specifications_are_refused_as_on_the_server(database: Database[Any]) -> None:
    server, make = _server(database), OddGenerator(5)
    found: list[Difference] = []
    for _ in range(60):
        documents = [make.document(identity) for identity in range(3)]
        for _ in range(40):
            found += differences(server, [make.odd_stage()], documents)
    _report(60 * 40 * 3, found)


@pytest.mark.mongodb("4.2.6", "5.0.4")
def test_older_dialects_come_out_as_on_their_servers(database: Database[Any]) -> None:
    server = _server(database)
    assert _compare_curated(server, every=9) > 2_000
    assert _compare_random(server, seed=6, wanted=2_000) >= 2_000


_OF_THE_C_RUNTIME = {"$sin": 2, "$cos": 1, "$tan": 1, "$atan2": 4, "$toDouble": 1}
"""How many results of each operator differ on 7.0, because the C runtime of a Windows build is another one."""


@pytest.mark.mongodb("7.0.28")
def test_7_0_comes_out_as_on_its_server(database: Database[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is a Windows build: equal elements are sorted as Visual C++ does, and nothing else may differ."""
    monkeypatch.setattr(arrays, "introsort", visual_cpp_sort)
    server = _server(database)
    assert _compare_curated(server, every=9, apart=(*_OF_THE_C_RUNTIME, "$sortArray")) > 2_000
    assert _compare_random(server, seed=6, wanted=2_000) >= 2_000
    for stages, documents in curated_cases():
        if _names_one_of(stages, ["$sortArray", "$dateFromString"]):
            _report(len(documents), differences(server, stages, list(map(bson.encode, documents))))


@pytest.mark.mongodb("7.0.28")
def test_what_the_c_runtime_of_7_0_computes_otherwise_is_what_wine_computes(
    database: Database[Any], tmp_path: Path
) -> None:
    server, found = _server(database), []
    for stages, documents in curated_cases():
        if _names_one_of(stages, list(_OF_THE_C_RUNTIME)):
            found += differences(server, stages, list(map(bson.encode, documents)))
    operators = [next(iter(each.stages[0]["$project"]["r"])) for each in found]
    assert dict(Counter(operators)) == _OF_THE_C_RUNTIME
    calls = [
        (name[1:], [float(value) for field, value in bson.decode(each.document).items() if field != "_id"])
        for name, each in zip(operators, found, strict=True)
        if name != "$toDouble"
    ]
    computed = c_runtime(calls, tmp_path)
    assert len(computed) == len(calls)
    expected = [STRTOD_NAN if name == "$toDouble" else computed.pop(0) for name in operators]
    for each, number in zip(found, expected, strict=True):
        result = {"_id": bson.decode(each.document)["_id"], "r": number}
        assert each.server == [bson.encode(result)], each


@pytest.mark.long
def test_many_random_stages_come_out_as_on_the_server(database: Database[Any]) -> None:
    """`make differential-expressions CASES=1000000 SEED=1`."""
    cases, seed = int(os.environ.get("CASES", "200000")), int(os.environ.get("SEED", "1"))
    assert _compare_random(_server(database), seed=seed, wanted=cases) >= cases
