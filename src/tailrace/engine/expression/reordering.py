"""Moving the conditions of a `$match` forward, before stages that do not touch what they test, as servers do.

It shows: an event that a moved condition drops never meets the stages it overtook, nor their failures, and
from 6.0 on a stream cannot be resumed at it. Seen on 4.2 to 7.0: conditions move one by one before
`$addFields`, `$set`, `$unset` and `$project`; before 7.0 `$size` and `$elemMatch` stay, and before 5.0 `$expr`; nothing
moves before `$replaceRoot`. Two things that servers move stay here: a condition on a field that a `$project` merely
renamed, and on 5.0 one with `$rand`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.engine.expression.conditions import Condition
from tailrace.engine.expression.parsing import Version
from tailrace.engine.expression.stages import Match, Projection, Stage


def move_matches_forward(stages: Sequence[Stage], version: Version) -> list[Stage]:
    """Give the stages in the order in which a server of this version runs them."""
    moved: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Match):
            _insert(moved, stage, version)
        else:
            moved.append(stage)
    return moved


def _insert(before: list[Stage], match: Match, version: Version) -> None:
    """Put each condition as far to the front as it may go; those that go nowhere stay together."""
    staying: list[Condition] = []
    by_index: dict[int, list[Condition]] = {}
    for part in match.condition.conjuncts():
        index = _index_for(before, part.movable_paths(version))
        if index == len(before):
            staying.append(part)
        else:
            by_index.setdefault(index, []).append(part)
    if not by_index:
        before.append(match)
        return
    if staying:
        before.append(Match.of(staying))
    for index in sorted(by_index, reverse=True):
        before.insert(index, Match.of(by_index[index]))


def _index_for(before: Sequence[Stage], paths: frozenset[bytes] | None) -> int:
    """Find the position of a condition on some paths: behind the last stage that it may not overtake."""
    found = len(before)
    if paths is None:
        return found
    for index in range(len(before) - 1, -1, -1):
        stage = before[index]
        if isinstance(stage, Projection):
            if not all(stage.preserves(path) for path in paths):
                return found
            found = index
        elif not isinstance(stage, Match):
            return found
    return found
