"""Every fault against every tool. The results make docs/losses.md."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from losses.changes import Change, count, count_documents
from losses.faults import FAULTS
from losses.page import PAGE, RESULTS, page, read_results
from losses.run import run
from losses.tools import TOOLS, Tool
from nemesis.line import Servers
from tailrace.stand import ReplicaSet

SEEDS = range(1, 1 + int(os.environ.get("SEEDS", "1")))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers[ReplicaSet]]:
    folder = tmp_path_factory.mktemp("losses")
    with ExitStack() as running:
        mongodb = running.enter_context(ReplicaSet.start(nodes=3, folder=folder / "mongodb"))
        yield Servers.start(folder, running, mongodb)


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.title)
@pytest.mark.parametrize("fault", FAULTS)
def test_losses(servers: Servers[ReplicaSet], tmp_path: Path, fault: str, tool: Tool, seed: int) -> None:
    """make losses: a tool of ours must lose nothing; what the others lose is written down."""
    cell = run(servers, tool, fault, seed, tmp_path / "tool")
    kept = Path(os.environ.get("RESULTS", RESULTS))
    with kept.open("a") as file:
        file.write(json.dumps(cell.line()) + "\n")
    print(cell)
    if tool.title.startswith("tailrace"):
        if not FAULTS[fault].refuses:
            assert not cell.stopped, cell
            assert cell.lost <= cell.dead_lettered, cell
        assert not cell.reordered, cell
        assert not cell.invented, cell
        assert "exactly" not in tool.title or not cell.duplicated or FAULTS[fault].repeats, cell


@pytest.mark.skipif(not RESULTS.exists(), reason="no results are kept yet; make losses")
def test_the_page_is_made_of_the_results() -> None:
    assert PAGE.read_text() == page(read_results())


def test_what_is_counted() -> None:
    one, two, three = Change("insert", "a", 1), Change("update", "a", 2), Change("insert", "b", 3)
    found = count([one, two, three], [two, one, two, Change("insert", "c", 4)])
    assert (found.lost, found.duplicated, found.reordered, found.invented) == (1, 1, 1, 1)
    assert count([one, two, three], [one, three, two]).reordered == 0


def test_documents_are_counted_where_changes_are_gone() -> None:
    changes = [Change("insert", "a", 1), Change("insert", "b", 2), Change("update", "b", 3), Change("insert", "c", 4)]
    assert count_documents({"a": 1, "b": 3, "c": 4}, changes).lost == 0
    assert count_documents({"a": 1, "b": 5}, changes).lost == 2, "b has an older value, c was deleted"
    assert count_documents({"a": 1, "b": 3, "c": 4, "d": 6}, changes).lost == 1
