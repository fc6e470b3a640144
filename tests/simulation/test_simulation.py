"""Capture on a virtual clock, with every interleaving drawn by a seed: `make simulate` runs ten thousand of them.

A failure prints its seed and the shortest trace that was found for it; `SEEDS=1 FIRST=n` runs that one again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator

import pytest
import structlog

from simulation.planted import PLANTED
from simulation.scheduler import replaced
from simulation.world import World, run_seed, shrunk

FEW_SEEDS = 12
ONCE_BROKEN = (93, 1695)
"""Seeds that broke a promise before what they showed was mended; by 1695 that was a promise nobody could keep."""
FIRST, SEEDS = int(os.environ.get("FIRST", "0")), int(os.environ.get("SEEDS", "10000"))
SEEDS_TO_FIND_A_BUG = 1_000
FOUND_AT_ONCE = (
    "begins_now_after_an_error",
    "gap_is_passed_over",
    "lease_is_not_renewed",
    "position_saved_before_acknowledgement",
    "post_batch_token_ahead_of_events",
    "rows_do_not_wait_for_the_stream",
    "token_of_the_batch_that_is_still_to_come",
)
"""Bugs that some seconds are enough for; the others take up to a minute each."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Producers say a lot about their troubles."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def shortest_trace(seed: int, world: World) -> str:
    made, shorter = shrunk(seed, world.scheduler.choices.made)
    lines = "\n".join(shorter.scheduler.trace)
    return f"{len(made)} choices are left of {len(world.scheduler.choices.made)}:\n{lines}"


def check(seeds: Iterable[int]) -> None:
    for seed in seeds:
        violation, world = run_seed(seed)
        assert violation is None, f"seed {seed}: {violation}\n{shortest_trace(seed, world)}"


def first_seed_that_finds(name: str, most: int) -> int | None:
    with replaced(PLANTED[name]()):
        return next((seed for seed in range(most) if run_seed(seed)[0] is not None), None)


def test_some_seeds_keep_every_promise() -> None:
    check([*range(FEW_SEEDS), *ONCE_BROKEN])


def test_a_seed_and_its_choices_give_the_same_run() -> None:
    _, first = run_seed(3)
    _, again = run_seed(3)
    _, replayed = run_seed(99, first.scheduler.choices.made)
    assert len(first.scheduler.trace) > 3
    for other in (again, replayed):
        assert other.scheduler.trace == first.scheduler.trace
        assert [each.record for each in other.broker.topic] == [each.record for each in first.broker.topic]


def test_a_run_that_broke_a_promise_is_made_shorter() -> None:
    with replaced(PLANTED["begins_now_after_an_error"]()):
        seed = first_seed_that_finds("begins_now_after_an_error", 20)
        assert seed is not None
        violation, world = run_seed(seed)
        made, shorter = shrunk(seed, world.scheduler.choices.made, most_runs=5)
        assert violation is not None
        assert len(made) < len(world.scheduler.choices.made)
        assert "BROKEN" in shorter.scheduler.trace[-1]


@pytest.mark.parametrize("name", FOUND_AT_ONCE)
def test_a_planted_bug_is_found_at_once(name: str) -> None:
    assert first_seed_that_finds(name, 20) is not None


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("name", sorted(PLANTED))
def test_every_planted_bug_is_found(name: str) -> None:
    found = first_seed_that_finds(name, SEEDS_TO_FIND_A_BUG)
    assert found is not None
    assert run_seed(found)[0] is None, "the same seed breaks nothing without the bug"


@pytest.mark.long
@pytest.mark.timeout(36_000)
def test_many_seeds_keep_every_promise() -> None:
    check(range(FIRST, FIRST + SEEDS))
