"""Whether a stream is alive: its position against the server's operation time, never "events observed".

A stream without events looks the same whether nothing happens or nothing works. Its position does not: empty batches
move it along with the server's own clock, so that a position that stands still while the server goes on is the proof
of a stall, and one that keeps up is the proof of health. Events only tell `idle` from `live`, both of them healthy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bson import Timestamp

from tailrace.settings import MonitorSettings


class State(StrEnum):
    """What a stream is doing, from the best to the worst."""

    IDLE = "idle"
    """It keeps up with the server, and there is nothing to deliver."""
    LIVE = "live"
    """It keeps up with the server and delivers events."""
    BEHIND = "behind"
    """It moves, but the server is well ahead."""
    PAUSED = "paused"
    """Somebody asked that nothing is read for now; the oplog goes on without it."""
    STALLED = "stalled"
    """The server goes on and the position does not."""
    RECOVERING = "recovering"
    """History was lost; a snapshot closes the gap."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What was observed of a stream and of its server at one moment (`at`, in Unix seconds)."""

    at: float
    position: Timestamp
    operation_time: Timestamp
    events: int | None = None
    """How many events were ever delivered, when that is known."""
    saved_at: float | None = None
    """When the position was saved, in Unix seconds by the writer's clock; lets one observation prove a stall."""
    recovering: bool = False
    paused: bool = False
    sink_problem: str | None = None
    """Why nothing is delivered; reading waits for that, and is well."""


@dataclass(frozen=True, slots=True)
class LagLimits:
    """How much delay is normal.

    An idle server writes a no-op every ten seconds (`periodicNoopIntervalSecs`), so positions move in such steps:
    less than that would raise false alarms on every quiet night.
    """

    behind_seconds: float = 30.0
    stalled_seconds: float = 60.0

    @classmethod
    def of(cls, settings: MonitorSettings) -> LagLimits:
        """Take it from the settings."""
        return cls(settings.behind_seconds, settings.stalled_seconds)


DEFAULT_LAG_LIMITS = LagLimits()
PAUSED = "it was asked to pause, and keeps its lag until it is resumed"


@dataclass(frozen=True, slots=True)
class Liveness:
    """A state, and the sentence that proves it."""

    state: State
    proof: str


def liveness_of(observations: Sequence[Observation], limits: LagLimits = DEFAULT_LAG_LIMITS) -> Liveness:
    """Judge a stream by its observations, the newest last."""
    now = observations[-1]
    age = max(0, now.operation_time.time - now.position.time)
    if now.paused:
        return Liveness(State.PAUSED, f"{PAUSED}; the position waits {age:,} s behind the server")
    if now.recovering:
        proof = f"a snapshot is closing a gap in the history; the position waits {age:,} s behind the server"
        return Liveness(State.RECOVERING, proof)
    if age <= limits.behind_seconds:
        return _healthy(observations, age)
    if now.sink_problem is not None:
        return Liveness(State.BEHIND, f"{now.sink_problem}; the position waits {age:,} s behind the server")
    still = _standstill(observations)
    if still >= limits.stalled_seconds:
        proof = f"the position has not moved for {still:,.0f} s, and the server is {age:,} s ahead of it"
        return Liveness(State.STALLED, proof)
    if still > 0:
        proof = (
            f"the position is {age:,} s behind the server and has not moved for {still:,.0f} s "
            f"(stalled after {limits.stalled_seconds:,.0f} s)"
        )
        return Liveness(State.BEHIND, proof)
    return Liveness(State.BEHIND, f"the position is {age:,} s behind the server, {_progress(observations)}")


def _healthy(observations: Sequence[Observation], age: int) -> Liveness:
    delivered = _delivered(observations)
    watched = observations[-1].at - observations[0].at
    if delivered:
        proof = f"{age:,} s behind the server, and delivered {delivered:,} events in {watched:,.0f} s"
        return Liveness(State.LIVE, proof)
    close = f"the position is {age:,} s behind the server, {_progress(observations)}"
    if delivered is None:
        moves = observations[0].position < observations[-1].position
        return Liveness(State.LIVE if moves else State.IDLE, close)
    return Liveness(State.IDLE, f"{close}, with no event in {watched:,.0f} s")


def _delivered(observations: Sequence[Observation]) -> int | None:
    if len(observations) < 2:
        return None
    first, last = observations[0].events, observations[-1].events
    return None if first is None or last is None else last - first


def _standstill(observations: Sequence[Observation]) -> float:
    """For how many seconds the position has been where it is, as far as that can be known.

    A move that was observed is timed by our own clock. The writer's clock, which may be wrong, only counts when no move
    was observed.
    """
    now = observations[-1]
    since = now.at
    for earlier in reversed(observations):
        if earlier.position != now.position:
            return now.at - since
        since = earlier.at
    return now.at - min(since, now.saved_at if now.saved_at is not None else since)


def _progress(observations: Sequence[Observation]) -> str:
    first, last = observations[0], observations[-1]
    watched = last.at - first.at
    if watched <= 0:
        return "observed once"
    moved = last.position.time - first.position.time
    server = last.operation_time.time - first.operation_time.time
    return f"moved {moved:,} s in {watched:,.0f} s while the server moved {server:,} s"
