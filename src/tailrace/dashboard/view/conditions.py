"""Which colour a part of the pipeline has, and why: pure functions, so that every state can be tested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tailrace.dashboard.sources import Reading
from tailrace.dashboard.values import Colour, Condition, DeadLetters
from tailrace.monitor import Level, Report
from tailrace.settings import MonitorSettings

SECONDS_DEAD_LETTERS_ARE_NEW = 600.0
_SEVERITY = {Colour.GREY: 0, Colour.GREEN: 1, Colour.AMBER: 2, Colour.RED: 3}
_LEVELS = {Level.OK: Colour.GREEN, Level.WARNING: Colour.AMBER, Level.CRITICAL: Colour.RED}
_STATES = {
    "idle": Colour.GREEN,
    "live": Colour.GREEN,
    "behind": Colour.AMBER,
    "paused": Colour.AMBER,
    "recovering": Colour.AMBER,
    "stopped": Colour.AMBER,
    "stalled": Colour.RED,
}


def worst(conditions: Iterable[Condition], when_none: Condition) -> Condition:
    """Give the worst condition, the first of several that are equally bad."""
    return max(conditions, key=lambda each: _SEVERITY[each.colour], default=when_none)


def of_reading(reading: Reading[Any], what: str, *, is_wanted: bool, good: str = "") -> Condition:
    """Judge whether something answers.

    What nobody asked for by name and never answered is grey: it may well not exist. What was asked for, or has answered
    before, is red when it does not.
    """
    if reading.problem is not None:
        if is_wanted or reading.good_at is not None:
            return Condition(Colour.RED, reading.problem)
        return Condition(Colour.GREY, f"not configured, and {_lower(reading.problem)}")
    if reading.at is None:
        return Condition(Colour.GREY, f"{what} has not been asked yet")
    return Condition(Colour.GREEN, good or f"{what} answers")


def of_reports(reports: Sequence[Report]) -> Condition:
    """Judge the oplog by the streams in it."""
    if not reports:
        return Condition(Colour.GREY, "no shard was read")
    bad = [report for report in reports if report.verdict.level is not Level.OK]
    if bad:
        first = max(bad, key=lambda report: report.verdict.level)
        reason = f"{first.stream} on {first.oplog.shard}: {first.verdict.reasons[0]}"
        return Condition(_LEVELS[first.verdict.level], reason)
    window = min(report.oplog.window_seconds for report in reports)
    return Condition(Colour.GREEN, f"the oplog holds {spoken(window)} of history")


def of_state(state: str, proof: str, reports: Sequence[Report] = ()) -> Condition:
    """Judge a stream by what its producer says of it, and by its position in the oplogs."""
    own = Condition(_STATES.get(state, Colour.AMBER), f"{state}: {proof}" if proof else state)
    positions = [
        Condition(_LEVELS[report.verdict.level], f"{state}: {report.verdict.reasons[0]}")
        for report in reports
        if report.verdict.reasons
    ]
    return worst([own, *positions], own)


def of_progress(
    what: str, at: float | None, moved_at: float | None, newest: float | None, now: float, limits: MonitorSettings
) -> Condition:
    """Judge a job by the newest event that is in its results, against the newest event there is.

    `at` is the cluster time of the former, `newest` the time of the latter, `moved_at` when the results last changed. A
    job without new events has nothing to do, however long ago it did something.
    """
    if at is None:
        return Condition(Colour.GREY, f"no event is in the {what} yet")
    behind = 0.0 if newest is None else newest - at
    if behind <= limits.behind_seconds:
        return Condition(Colour.GREEN, f"the {what} are up to date" if behind < 1.5 else f"{spoken(behind)} behind")
    still = now - (moved_at or at)
    if still >= limits.stalled_seconds:
        return Condition(Colour.RED, f"nothing new for {spoken(still)}, and {spoken(behind)} behind the newest event")
    return Condition(Colour.AMBER, f"{spoken(behind)} behind the newest event")


def with_dead_letters(condition: Condition, dead_letters: DeadLetters, now: float) -> Condition:
    """Add the dead letters to what is said of a part; new ones want attention, as the alert on them does."""
    if not dead_letters.total:
        return condition
    reason = f"{condition.reason}; {dead_letters.total:,} dead letter{'' if dead_letters.total == 1 else 's'}"
    is_new = any((one.at or 0.0) > now - SECONDS_DEAD_LETTERS_ARE_NEW for one in dead_letters.newest)
    answer = Condition(condition.colour, reason)
    return worst([answer, Condition(Colour.AMBER, reason)], answer) if is_new else answer


def of_gateway(
    reading: Reading[Any], watchers: int, stalled: dict[str, float], slowest: float, distrusted: int = 0
) -> Condition:
    """Judge a gateway by its shards and its slowest watcher."""
    if reading.problem is not None:
        return Condition(Colour.RED, reading.problem)
    if reading.at is None:
        return Condition(Colour.GREY, "the gateway has not been asked yet")
    unanswered = {shard: seconds for shard, seconds in stalled.items() if seconds > 0}
    if unanswered:
        shard, seconds = max(unanswered.items(), key=lambda each: each[1])
        return Condition(Colour.RED, f"shard {shard} has not answered for {spoken(seconds)}")
    if distrusted:
        message = f"the engine makes {distrusted} kinds of events otherwise than the upstream, which serves those"
        return Condition(Colour.AMBER, message)
    if slowest > 30:
        return Condition(Colour.AMBER, f"the slowest watcher is {spoken(slowest)} behind")
    up_to_date = f"{watchers:,} watcher{'' if watchers == 1 else 's'}, up to date"
    return Condition(Colour.GREEN, up_to_date if watchers else "nobody watches")


def overall(conditions: Sequence[Condition]) -> Condition:
    """Say in one sentence how everything is."""
    if all(each.colour is Colour.GREY for each in conditions):
        return Condition(Colour.GREY, "nothing to show yet")
    found = worst(conditions, Condition(Colour.GREY, ""))
    if found.colour is Colour.GREEN:
        return Condition(Colour.GREEN, "everything configured is healthy")
    return found


def spoken(seconds: float) -> str:
    """Give a duration in one unit: `45 s`, `3.5 min`, `2 h`, `4 d`."""
    for limit, unit, size in ((90.0, "s", 1.0), (5_400.0, "min", 60.0), (129_600.0, "h", 3_600.0)):
        if seconds < limit:
            count = seconds / size
            digits = 0 if (unit == "s" and count >= 10) or count == int(count) else 1
            return f"{count:.{digits}f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
