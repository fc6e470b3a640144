"""A state is read from the position's progress; events never make a stream look healthy, nor ill."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bson import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tailrace.monitor.liveness import LagLimits, Observation, State, liveness_of

START = 1_700_000_000
HEALTHY = {State.IDLE, State.LIVE}


def watched(*moments: tuple[float, int, int, int | None]) -> list[Observation]:
    """Observations from (wall time, position, operation time, events), all counted from a common start."""
    return [
        Observation(START + at, Timestamp(START + position, 1), Timestamp(START + server, 1), events)
        for at, position, server, events in moments
    ]


@pytest.mark.parametrize(
    ("observations", "state", "proof"),
    [
        (
            watched((0, 0, 0, 7), (60, 57, 60, 7)),
            State.IDLE,
            "3 s behind the server, moved 57 s in 60 s while the server moved 60 s, with no event in 60 s",
        ),
        (watched((0, 0, 0, 7), (60, 57, 60, 1507)), State.LIVE, "and delivered 1,500 events in 60 s"),
        (
            watched((0, 0, 500, 7), (60, 40, 560, 90)),
            State.BEHIND,
            "520 s behind the server, moved 40 s in 60 s while the server moved 60 s",
        ),
        (
            watched((0, 0, 0, 7), (20, 20, 20, 8), (100, 20, 100, 9)),
            State.STALLED,
            "has not moved for 80 s, and the server is 80 s ahead of it",
        ),
        (watched((0, 0, 0, 7), (40, 0, 40, 7)), State.BEHIND, "has not moved for 40 s (stalled after 60 s)"),
        (watched((0, 0, 90, None)), State.BEHIND, "90 s behind the server, observed once"),
        (watched((0, 5, 5, None), (600, 5, 5, None)), State.IDLE, "moved 0 s in 600 s while the server moved 0 s"),
    ],
)
def test_each_state_comes_with_its_proof(observations: list[Observation], state: State, proof: str) -> None:
    found = liveness_of(observations)
    assert found.state is state
    assert proof in found.proof


def test_a_stream_that_recovers_says_so_however_far_behind_it_is() -> None:
    now = replace(watched((0, 0, 5_000, 1))[0], recovering=True)
    assert liveness_of([now]).state is State.RECOVERING


def test_one_look_proves_a_stall_when_the_store_knows_when_the_position_was_saved() -> None:
    now = replace(watched((7_200, 0, 7_200, 1))[0], saved_at=float(START))
    found = liveness_of([now])
    assert found.state is State.STALLED
    assert "has not moved for 7,200 s" in found.proof


def test_a_writers_wrong_clock_makes_no_stall_of_a_position_that_is_seen_to_move() -> None:
    slow = watched((0, 0, 500, 1), (10, 5, 510, 2))
    assert liveness_of([replace(each, saved_at=START - 9_000.0) for each in slow]).state is State.BEHIND


@given(
    steps=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30), st.integers(0, 1_000)), min_size=1, max_size=30)
)
def test_a_position_that_keeps_up_is_never_called_ill(steps: list[tuple[int, int, int]]) -> None:
    """Even when it moves in steps of the server's no-op interval, and whatever the event count does."""
    at, moments = 0, []
    for passed, lag, events in steps:
        at += passed
        moments.append((float(at), at - lag, at, events))
    assert liveness_of(watched(*moments)).state in HEALTHY


@given(
    still_for=st.integers(61, 100_000),
    looks=st.integers(2, 20),
    events=st.lists(st.integers(0, 10**9), min_size=20, max_size=20),
)
def test_a_position_that_stands_still_while_the_server_goes_on_is_stalled_whatever_was_counted(
    still_for: int, looks: int, events: list[int]
) -> None:
    moments = [(still_for * n / (looks - 1), 0, still_for * n // (looks - 1), events[n]) for n in range(looks)]
    assert liveness_of(watched(*moments)).state is State.STALLED


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=20), st.data()
)
def test_events_only_tell_idle_from_live(steps: list[tuple[int, int, int]], data: st.DataObject) -> None:
    at = position = server = 0
    moments = []
    for passed, read, written in steps:
        at, server = at + passed, server + written
        position = min(position + read, server)
        moments.append((float(at), position, server, data.draw(st.integers(0, 100))))
    observations = watched(*moments)
    without = [replace(each, events=0) for each in observations]
    found, expected = liveness_of(observations).state, liveness_of(without).state
    assert found is expected or {found, expected} == HEALTHY


def test_patience_can_be_set() -> None:
    observations = watched((0, 0, 0, 1), (10, 0, 10, 1))
    assert liveness_of(observations, LagLimits(behind_seconds=5, stalled_seconds=9)).state is State.STALLED
    assert liveness_of(observations).state is State.IDLE
