"""What is done about lost history: every state a stream can be in, and its answer to everything that may happen.

    NEW ──begin──> SNAPSHOT ──delivered──> FOLLOWING <───────────────────────────┐
                      │  ^                  │     │                              │
                      │  └────ask snapshot──┘     │ lost                         │
                      │ lost                      v                              │
                      └───────────────────────> LOST ──begin──> RECOVERING ──delivered──> CLOSING
                                                 ^                  │
                                                 └──lost: it grows──┘

A state is read off what is stored (position, ledger, progress of the snapshot), never kept in memory: so a process that
dies between any two steps leaves a state, and the next one answers `begin` in it. The gap grows when history is lost
again while it is closed: rows that were read before the loss say nothing about what happened in it, so the recovery
begins anew, after a pause that grows with the turns. `ask start now`, by name, leads from every state to FOLLOWING with
the gap accepted; `ask recover` begins a recovery wherever none is under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from tailrace.retry import RetryPolicy


class RecoveryState(StrEnum):
    """Where a stream stands between its history and its sink."""

    NEW = "new"
    """There is no position."""
    FOLLOWING = "following"
    """No gap is open, and no snapshot under way."""
    SNAPSHOT = "snapshot"
    """A snapshot is under way that closes no gap."""
    LOST = "lost"
    """A gap is open, and its recovery has to begin."""
    RECOVERING = "recovering"
    """A snapshot is under way that closes the gap."""
    CLOSING = "closing"
    """The snapshot is finished, and the ledger does not say yet that the gap is closed."""


class RecoveryEvent(StrEnum):
    """What may happen to it."""

    BEGIN = "begin"
    """An attempt to follow the stream begins, in a new process or after an error."""
    LOST = "lost"
    """The server has no history at the position any more."""
    DELIVERED = "delivered"
    """The sink has acknowledged the last row of the snapshot under way."""
    ASK_SNAPSHOT = "ask snapshot"
    ASK_RECOVER = "ask recover"
    ASK_START_NOW = "ask start now"


class Action(StrEnum):
    """What is done then."""

    NOTHING = "nothing"
    TAKE_FIRST = "take the first snapshot"
    TAKE_SNAPSHOT = "take a snapshot"
    FINISH = "note that the snapshot is finished"
    OPEN_GAP = "write the gap into the ledger"
    GROW_GAP = "write into the ledger that the gap has grown"
    RECOVER = "begin the recovery"
    CLOSE = "close the gap"
    ACCEPT = "accept the gap, give a snapshot up, and begin now"


S: TypeAlias = RecoveryState
E: TypeAlias = RecoveryEvent
A: TypeAlias = Action
ANSWERS: Final[Mapping[RecoveryState, Mapping[RecoveryEvent, tuple[Action, RecoveryState]]]] = {
    S.NEW: {
        E.BEGIN: (A.TAKE_FIRST, S.SNAPSHOT),
        E.LOST: (A.NOTHING, S.NEW),
        E.DELIVERED: (A.NOTHING, S.NEW),
        E.ASK_SNAPSHOT: (A.TAKE_FIRST, S.SNAPSHOT),
        E.ASK_RECOVER: (A.TAKE_FIRST, S.SNAPSHOT),
        E.ASK_START_NOW: (A.ACCEPT, S.FOLLOWING),
    },
    S.FOLLOWING: {
        E.BEGIN: (A.NOTHING, S.FOLLOWING),
        E.LOST: (A.OPEN_GAP, S.LOST),
        E.DELIVERED: (A.NOTHING, S.FOLLOWING),
        E.ASK_SNAPSHOT: (A.TAKE_SNAPSHOT, S.SNAPSHOT),
        E.ASK_RECOVER: (A.RECOVER, S.RECOVERING),
        E.ASK_START_NOW: (A.ACCEPT, S.FOLLOWING),
    },
    S.SNAPSHOT: {
        E.BEGIN: (A.NOTHING, S.SNAPSHOT),
        E.LOST: (A.OPEN_GAP, S.LOST),
        E.DELIVERED: (A.FINISH, S.FOLLOWING),
        E.ASK_SNAPSHOT: (A.NOTHING, S.SNAPSHOT),
        E.ASK_RECOVER: (A.RECOVER, S.RECOVERING),
        E.ASK_START_NOW: (A.ACCEPT, S.FOLLOWING),
    },
    S.LOST: {
        E.BEGIN: (A.RECOVER, S.RECOVERING),
        E.LOST: (A.GROW_GAP, S.LOST),
        E.DELIVERED: (A.NOTHING, S.LOST),
        E.ASK_SNAPSHOT: (A.RECOVER, S.RECOVERING),
        E.ASK_RECOVER: (A.RECOVER, S.RECOVERING),
        E.ASK_START_NOW: (A.ACCEPT, S.FOLLOWING),
    },
    S.RECOVERING: {
        E.BEGIN: (A.NOTHING, S.RECOVERING),
        E.LOST: (A.GROW_GAP, S.LOST),
        E.DELIVERED: (A.CLOSE, S.FOLLOWING),
        E.ASK_SNAPSHOT: (A.NOTHING, S.RECOVERING),
        E.ASK_RECOVER: (A.NOTHING, S.RECOVERING),
        E.ASK_START_NOW: (A.ACCEPT, S.FOLLOWING),
    },
    S.CLOSING: {
        E.BEGIN: (A.CLOSE, S.FOLLOWING),
        E.LOST: (A.GROW_GAP, S.LOST),
        E.DELIVERED: (A.CLOSE, S.FOLLOWING),
        E.ASK_SNAPSHOT: (A.CLOSE, S.FOLLOWING),
        E.ASK_RECOVER: (A.RECOVER, S.RECOVERING),
        E.ASK_START_NOW: (A.ACCEPT, S.FOLLOWING),
    },
}
"""Each state's answer to each event: what is done, and the state that is stored then."""


def answer(state: RecoveryState, event: RecoveryEvent) -> tuple[Action, RecoveryState]:
    """Give what is done when something happens in a state, and the state after it."""
    return ANSWERS[state][event]


def state_of(
    *, has_position: bool, gap_is_open: bool, gap_recovers: bool, is_unfinished: bool, closes_gap: bool
) -> RecoveryState:
    """Read the state off what is stored.

    `gap_is_open`: the ledger has a gap that is not closed; `gap_recovers`: it says that a recovery is under way.
    `is_unfinished`: a snapshot is under way; `closes_gap`: the newest snapshot, under way or not, is for that gap.
    """
    if gap_is_open and not (gap_recovers and closes_gap and has_position):
        return S.LOST
    if gap_is_open:
        return S.RECOVERING if is_unfinished else S.CLOSING
    if not has_position:
        return S.NEW
    return S.SNAPSHOT if is_unfinished else S.FOLLOWING


def pause_before(turn: int, policy: RetryPolicy) -> float:
    """Give how long to wait before a recovery begins: not at all the first time, then longer with every turn."""
    return 0.0 if turn < 2 else policy.longest_pause(turn - 1)
