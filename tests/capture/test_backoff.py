from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.backoff import Backoff, BackoffPolicy


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.floats(0, 1), st.integers(1, 200))
def test_pauses_grow_to_the_longest_and_never_beyond(chance: float, failures: int) -> None:
    backoff = Backoff(BackoffPolicy(first=0.1, longest=5, budget=1e9), clock=Clock(), chance=lambda: chance)
    pauses = [backoff.failed() for _ in range(failures)]
    assert all(pause is not None and 0.05 <= pause <= 5 for pause in pauses)
    assert pauses == sorted(pauses)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300))
def test_the_time_spent_waiting_never_exceeds_the_budget(chances: list[float]) -> None:
    clock, drawn = Clock(), iter(chances)
    backoff = Backoff(BackoffPolicy(budget=30), clock=clock, chance=lambda: next(drawn))
    for _ in chances:
        pause = backoff.failed()
        if pause is None:
            break
        clock.now += pause
    assert clock.now <= 30


def test_progress_gives_the_budget_back() -> None:
    clock = Clock()
    backoff = Backoff(BackoffPolicy(budget=1, first=0.6, longest=0.6), clock=clock, chance=lambda: 1.0)
    assert backoff.failed() == 0.6
    clock.now = 0.6
    assert backoff.failed() is None
    backoff.progressed()
    assert backoff.failed() == 0.6
