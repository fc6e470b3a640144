"""Whatever is killed while the demo runs comes back by itself, and nothing that was written meanwhile is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from up_pipeline import SECONDS, Pipeline, descendants, kill, running_pipeline, wait_gone

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(6 * SECONDS)]
PARTS = ("mongodb", "kafka", "redis", "producer", "features fraud", "warehouse", "dashboard", "load")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with running_pipeline(tmp_path_factory.mktemp("up")) as running:
        yield running


def jvm_of(pid: int) -> int:
    """The Java process below a Spark job."""
    return next(
        child for child in sorted(descendants(pid)) if Path(f"/proc/{child}/comm").read_text().strip() == "java"
    )


def test_the_parts_are_those_that_are_killed_here(pipeline):
    """make up-kills"""
    assert sorted(pipeline.parts) == sorted(PARTS)


@pytest.mark.parametrize(("number", "part"), list(enumerate(PARTS)))
def test_a_killed_part_comes_back_and_nothing_is_missing(pipeline, number, part):
    before, user = pipeline.pid_of(part), 991_000 + number
    kill(before)
    pipeline.wait_until(lambda: pipeline.pid_of(part) != before, f"the return of {part}")
    pipeline.pay(user, 1)
    pipeline.wait_for_features_of(user)
    assert pipeline.reports(part, "gave up") == []


@pytest.mark.parametrize(("number", "part"), list(enumerate(("features fraud", "warehouse"))))
def test_a_job_whose_jvm_is_killed_comes_back(pipeline, number, part):
    before, user = pipeline.pid_of(part), 992_000 + number
    kill(jvm_of(before))
    pipeline.wait_until(lambda: pipeline.pid_of(part) != before, f"the return of {part}")
    pipeline.pay(user, 1)
    pipeline.wait_for_features_of(user)


def test_killing_the_command_itself_leaves_no_process(pipeline):
    started = pipeline.processes()
    pipeline.process.kill()
    pipeline.process.wait(SECONDS)
    wait_gone(started)
