"""Recovery simulated: every sequence of what may happen, with a crash at every write, and what must hold throughout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from bson.timestamp import Timestamp

from tailrace.capture.positions import Position
from tailrace.capture.recovery.gaps import GapState
from tailrace.capture.recovery.inventory import NoInventory
from tailrace.capture.recovery.machine import ANSWERS, Action, RecoveryEvent, RecoveryState, pause_before
from tailrace.capture.recovery.recovery import Recovery
from tailrace.capture.source.source import Selection
from tailrace.retry import RetryPolicy
from tailrace.token import ResumeToken

EVENTS = list(RecoveryEvent)


class Crashed(Exception):
    """The process died before a write."""


@dataclass
class World:
    """A position store, a leader and a source in memory; it dies before the write of a number."""

    dies_at: int | None = None
    cells: dict[str, bytes] = field(default_factory=dict)
    position: Position | None = None
    time: int = 1
    writes: int = 0
    needs_rows: bool = True
    """Whether the sink lacks something that no event will tell: nothing was read yet, or history was lost."""
    accepted: bool = False
    """Whether a person has said that it may lack that."""
    selection: Selection = field(default_factory=lambda: Selection(family="mongodb"))
    fingerprint: str = "same"

    # --- Cells

    def read(self, name: str) -> bytes | None:
        return self.cells.get(name)

    def swap(self, name: str, expected: bytes | None, cell: bytes, change: bytes | None) -> bool:
        assert self.cells.get(name) == expected
        self._write()
        self.cells[name] = cell
        return True

    def changes(self, name: str, limit: int) -> list[bytes]:
        return []

    def names(self) -> list[str]:
        return list(self.cells)

    def close(self) -> None:
        pass

    # --- the leader and the source

    def save(self, position: Position, *, reason: str | None = None) -> None:
        self._write()
        self.position = position

    def documents(self) -> Any:
        return _NoCollections()

    def now(self) -> tuple[bytes, Timestamp]:
        self.time += 1
        return ResumeToken.high_water_mark(Timestamp(self.time, 1)).to_bson(), Timestamp(self.time, 1)

    def _write(self) -> None:
        self.writes += 1
        if self.writes == self.dies_at:
            raise Crashed

    # --- what happens

    def happens(self, event: RecoveryEvent) -> None:
        """Let the product answer an event with nothing in memory; after a crash the next process begins."""
        before = self.position
        try:
            self._answer(self.recovery(), event)
        except Crashed:
            self._answer(self.recovery(), RecoveryEvent.BEGIN)
            if event is RecoveryEvent.LOST and self.position is before:
                self._answer(self.recovery(), event)  # the server has not got it back
        self._check(self.recovery())

    def recovery(self) -> Recovery:
        return Recovery(self, self, "s", NoInventory())  # type: ignore[arg-type]

    def _answer(self, recovery: Recovery, event: RecoveryEvent) -> None:
        before = recovery.state(self.position)
        if event is RecoveryEvent.LOST:
            if before is not RecoveryState.NEW:
                self.needs_rows, self.accepted = True, False
                recovery.lost(self.position, "mongodb-286")
            return
        if event is RecoveryEvent.DELIVERED:
            if before in (RecoveryState.SNAPSHOT, RecoveryState.RECOVERING):
                self.needs_rows = False
            recovery.finish(self.position, 0)
            return
        if event is RecoveryEvent.ASK_START_NOW:
            self.accepted = True
        recovery.begin(event, self, asked_by="a person")  # type: ignore[arg-type]
        assert self.position is not None
        assert self.position.token is not None
        lost = {ResumeToken.parse(token) for token in recovery.lost_tokens()}
        assert ResumeToken.parse(self.position.token) not in lost, "a dead token would be sent"

    def _check(self, recovery: Recovery) -> None:
        state, gaps = recovery.state(self.position), recovery.ledger.all()
        assert sum(gap.is_open for gap in gaps) <= 1
        if state is RecoveryState.FOLLOWING:
            assert self.accepted or not self.needs_rows, "the stream goes on over a hole that nobody knows of"
        if state is not RecoveryState.NEW and self.needs_rows and not self.accepted:
            assert state in (RecoveryState.SNAPSHOT, RecoveryState.LOST, RecoveryState.RECOVERING)


class _NoCollections:
    """A deployment without a collection."""

    @property
    def admin(self) -> _NoCollections:
        return self

    def command(self, _: Any) -> dict[str, Any]:
        return {"databases": []}


def simulated(events: Sequence[RecoveryEvent], dies_at: int | None = None) -> World:
    world = World(dies_at)
    for event in events:
        world.happens(event)
    return world


def test_every_state_has_an_answer_to_every_event() -> None:
    assert {state: set(answers) for state, answers in ANSWERS.items()} == {
        state: set(RecoveryEvent) for state in RecoveryState
    }
    assert {action for answers in ANSWERS.values() for action, _ in answers.values()} == set(Action)


def test_no_sequence_of_events_passes_over_a_hole() -> None:
    for events in product(EVENTS, repeat=4):
        simulated(events)


@pytest.mark.parametrize("first", EVENTS)
def test_no_crash_at_any_write_passes_over_a_hole(first: RecoveryEvent) -> None:
    for rest in product(EVENTS, repeat=2):
        writes = simulated([first, *rest]).writes
        for number in range(1, writes + 1):
            simulated([RecoveryEvent.BEGIN, first, *rest], number)


def test_a_gap_grows_with_every_loss_and_is_closed_once() -> None:
    world = simulated([RecoveryEvent.BEGIN, RecoveryEvent.DELIVERED])
    for _ in range(3):
        world.happens(RecoveryEvent.LOST)
        world.happens(RecoveryEvent.BEGIN)
    (gap,) = world.recovery().ledger.all()
    assert (gap.state, gap.turns, len(gap.lost_again), len(gap.notes)) == (GapState.RECOVERING, 3, 2, 2)
    assert len(set(world.recovery().lost_tokens())) == 3, "none of them is ever sent again"
    assert gap.first_known == world.position.cluster_time if world.position else None
    world.happens(RecoveryEvent.DELIVERED)
    (gap,) = world.recovery().ledger.all()
    assert gap.state is GapState.CLOSED
    world.happens(RecoveryEvent.LOST)
    assert len(world.recovery().ledger.all()) == 2


def test_each_turn_waits_longer_than_the_one_before() -> None:
    pauses = [pause_before(turn, RetryPolicy(first=0.1, longest=10)) for turn in range(1, 100)]
    assert pauses[0] == 0 < pauses[1]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 10
