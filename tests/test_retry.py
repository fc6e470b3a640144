from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.retry import Backoff, RetryPolicy, retried


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.floats(0, 1), st.integers(1, 200) | st.just(1_100))
def test_pauses_grow_to_the_longest_and_never_beyond(chance: float, failures: int) -> None:
    backoff = Backoff(RetryPolicy(first=0.1, longest=5, budget=1e9), clock=Clock(), chance=lambda: chance)
    pauses = [backoff.failed() for _ in range(failures)]
    assert all(pause is not None and 0.05 <= pause <= 5 for pause in pauses)
    assert pauses == sorted(pauses)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300))
def test_the_time_spent_waiting_never_exceeds_the_budget(chances: list[float]) -> None:
    clock, drawn = Clock(), iter(chances)
    backoff = Backoff(RetryPolicy(budget=30), clock=clock, chance=lambda: next(drawn))
    for _ in chances:
        pause = backoff.failed()
        if pause is None:
            break
        clock.now += pause
    assert clock.now <= 30


def test_progress_gives_the_budget_back() -> None:
    clock = Clock()
    backoff = Backoff(RetryPolicy(budget=1, first=0.6, longest=0.6), clock=clock, chance=lambda: 1.0)
    assert backoff.failed() == 0.6
    clock.now = 0.6
    assert backoff.failed() is None
    backoff.progressed()
    assert backoff.failed() == 0.6


class Away:
    """A call that fails so many times, and a clock that only sleeping moves."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures, self.error, self.now = failures, error, 0.0

    def __call__(self) -> str:
        self.failures -= 1
        if self.failures >= 0:
            raise self.error
        return "there"

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def retried(self, **options: Any) -> str:
        policy = RetryPolicy(first=0.1, longest=1.0, budget=10.0)
        return retried(
            self,
            policy,
            is_passing=lambda error: isinstance(error, ConnectionError),
            sleep=self.sleep,
            clock=lambda: self.now,
            **options,
        )


def test_a_call_is_made_again_while_its_error_passes():
    away = Away(5, ConnectionError())
    assert away.retried() == "there"
    assert 1 < away.now < 3  # half to all of 0.1 + 0.2 + 0.4 + 0.8 + 1.0


def test_another_error_is_raised_at_once():
    away = Away(5, ValueError())
    with pytest.raises(ValueError):  # noqa: PT011
        away.retried()
    assert away.now == 0


def test_a_spent_budget_ends_it_with_the_error_or_what_is_said_of_it():
    with pytest.raises(ConnectionError):
        Away(1_000, ConnectionError()).retried()
    with pytest.raises(LookupError) as caught:
        Away(1_000, ConnectionError("gone")).retried(spent=lambda error: LookupError(str(error)))
    assert str(caught.value) == "gone"
    assert isinstance(caught.value.__cause__, ConnectionError)
