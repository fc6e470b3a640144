"""The compiled stages against a real server: the same documents and stages, the same bytes or the same error code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import bson
import pytest
from pymongo.database import Database

from engine.expression.expression_cases import curated_cases
from engine.expression.expression_generator import Generator
from engine.expression.odd_specifications import OddGenerator
from engine.expression.server_answers import Difference, Server, differences

_DOCUMENTS = 12
_STAGES_PER_DOCUMENTS = 40


def _server(database: Database[Any]) -> Server:
    return Server(database, database.client.server_info()["version"])


_AS_ON_WINDOWS = ("$sin", "$cos", "$tan", "$atan2", "$sortArray", "$toDouble")
"""What a Windows build computes otherwise than a Linux one: last digits, the order of equal elements, a NaN's bits."""


def _report(cases: int, found: Sequence[Difference], apart: Sequence[str] = ()) -> None:
    """Fail where anything differs, apart from stages with some operators."""
    found = [each for each in found if not any(f"'{name}'" in repr(each.stages) for name in apart)]
    shown = "\n\n".join(map(str, found[:10]))
    assert not found, f"{len(found)} of {cases} cases differ:\n{shown}"


def _compare_curated(server: Server, *, every: int, apart: Sequence[str] = ()) -> int:
    cases, found = 0, []
    for stages, documents in curated_cases():
        chosen = [bson.encode(document) for document in documents[::every]]
        cases += len(chosen)
        found += differences(server, stages, chosen)
    _report(cases, found, apart)
    return cases


def _compare_random(server: Server, seed: int, wanted: int, apart: Sequence[str] = ()) -> int:
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
    _report(cases, found, apart)
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


@pytest.mark.mongodb("7.0.28")
def test_7_0_differs_only_where_a_windows_build_does(database: Database[Any]) -> None:
    server = _server(database)
    assert _compare_curated(server, every=9, apart=_AS_ON_WINDOWS) > 2_000
    assert _compare_random(server, seed=6, wanted=2_000, apart=_AS_ON_WINDOWS) >= 2_000


@pytest.mark.long
def test_many_random_stages_come_out_as_on_the_server(database: Database[Any]) -> None:
    """`make differential-expressions CASES=1000000 SEED=1`."""
    cases, seed = int(os.environ.get("CASES", "200000")), int(os.environ.get("SEED", "1"))
    assert _compare_random(_server(database), seed=seed, wanted=cases) >= cases
