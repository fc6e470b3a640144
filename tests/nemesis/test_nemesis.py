"""Several faults at once against the whole line: nothing acknowledged is lost, nothing is invented, order holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nemesis.deployments import Deployment, ReplicaSetDeployment, ShardedDeployment
from nemesis.line import Servers
from nemesis.run import Run
from nemesis.schedule import draw
from nemesis.summary import PAGE, RESULTS, read_results, whole

SECONDS = 20.0
SEEDS = (1, 2, 3)


DEPLOYMENTS: dict[str, Callable[[Path, ExitStack], Deployment]] = {
    "replica set": ReplicaSetDeployment,
    "sharded cluster": ShardedDeployment,
}


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers[Deployment]]:
    folder = tmp_path_factory.mktemp("nemesis")
    with ExitStack() as running:
        yield Servers.start(folder, running, DEPLOYMENTS[request.param](folder, running))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("servers", ["replica set"], indirect=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost(servers: Servers[Deployment], tmp_path: Path, seed: int) -> None:
    report = Run(servers, tmp_path, seed, SECONDS).whole()
    print(report.text())
    assert not report.problems, report.text()


@pytest.mark.long
@pytest.mark.timeout(8 * 3600)
@pytest.mark.parametrize(
    ("servers", "with_jobs"),
    [("replica set", False), ("sharded cluster", False), ("replica set", True)],
    ids=["replica set", "sharded cluster", "Spark jobs"],
    indirect=["servers"],
)
def test_nothing_is_lost_for_an_hour(servers: Servers[Deployment], tmp_path: Path, with_jobs: bool) -> None:
    """make nemesis MINUTES=60 SEED=1: one seed after the other, each a minute of faults, on each deployment."""
    first, minutes = int(os.environ.get("SEED", "1")), float(os.environ.get("MINUTES", "60"))
    results = Path(os.environ.get("RESULTS", tmp_path / "nemesis.jsonl"))
    deadline = time.monotonic() + 60 * minutes
    bad = []
    seed = first
    while time.monotonic() < deadline:
        report = Run(servers, tmp_path / str(seed), seed, 60.0, with_jobs=with_jobs).whole()
        report.save(results)
        print(report.text(), flush=True)
        if report.problems:
            bad.append(seed)
        seed += 1
    assert not bad, f"of the seeds {first} to {seed - 1} these failed: {bad}"


def test_a_seed_always_draws_the_same_faults() -> None:
    menu = [f"fault {number}" for number in range(7)]
    assert draw(5, menu, 60) == draw(5, menu, 60)
    assert draw(5, menu, 60) != draw(6, menu, 60)
    assert {strike.fault for strike in draw(5, menu, 60)} == set(menu)


@pytest.mark.skipif(
    not RESULTS.exists(), reason="no results are kept yet; make nemesis RESULTS=tests/nemesis/results.jsonl"
)
def test_the_page_shows_what_was_run() -> None:
    """`python -m nemesis.summary` makes it."""
    assert PAGE.read_text() == whole(PAGE.read_text(), read_results())
