"""Which action a field has, by its path: the rules of a collection as a state machine over field names.

A path is field names with dots between. `*` stands for one name and `**` for any number of them, none included.
Positions in arrays need no name: `items.note` is `note` in each of the items; a position may be named all the same
(`items.0`). A field whose name has dots in it counts as a path. What a rule says of a field holds for all beneath it.

The machine is built as it is used. Names that no rule spells out share one transition, so that documents with any
number of names need no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from tailrace.policy.actions import Action, Kind

ID: Final = b"_id"
_ONE: Final = b"*"
_ANY: Final = b"**"
OTHER: Final = b"*"
"""Stands for every name that no rule spells out; it stands for no certain field, because `*` is never spelt out."""


class AmbiguousPath(Exception):
    """A number in the path of an update is a position or a name, and the allow-list allows only one of the two."""

    def __init__(self, path: bytes) -> None:
        super().__init__(path.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to some fields of some collections; without an action they are the only ones that are kept."""

    namespaces: tuple[str, ...]
    """`db.collection`, in which `*` stands for any characters."""
    fields: tuple[str, ...]
    action: Action | None

    def covers(self, namespace: str) -> bool:
        """Whether the rule is about a collection."""
        return any(fnmatchcase(namespace, pattern) for pattern in self.namespaces)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One path of a rule."""

    names: tuple[bytes, ...]
    action: Action | None

    def reached(self, index: int) -> Iterable[int]:
        """Give the indexes that are reached with this one: `**` may stand for nothing."""
        yield index
        while index < len(self.names) and self.names[index] == _ANY:
            index += 1
            yield index

    def after(self, index: int, name: bytes) -> Iterable[int]:
        """Give the indexes that are reached by a name."""
        if index >= len(self.names):
            return
        wanted = self.names[index]
        if wanted == _ANY:
            yield from self.reached(index)
        elif wanted in (_ONE, name):
            yield from self.reached(index + 1)


_Progress = frozenset[tuple[int, int]]
"""Which pattern has been matched how far: pairs of its number and the index in it."""


class FieldState:
    """What the rules say of one field, and, by way of other states, of the fields beneath it."""

    __slots__ = ("_machine", "_steps", "action", "is_kept", "is_untouched", "progress")

    def __init__(self, machine: _Machine, progress: _Progress, action: Action | None, is_allowed: bool) -> None:
        self._machine = machine
        self.progress = progress
        """How far the patterns are matched here."""
        self._steps: dict[bytes, FieldState] = {}
        self.action = action
        """What happens to the field and to all beneath it."""
        self.is_kept = is_allowed
        """Whether the field is on the allow-list, or there is none."""
        self.is_untouched = is_allowed and action is None and not progress
        """Whether nothing happens here and beneath."""

    def may_touch(self, data: bytes) -> bool:
        """Whether some bytes can hold a field that something happens to: a quick look that may be wrong with yes."""
        ends = self.ends
        return ends is None or any(name in data for name in ends)

    @property
    def may_contain_kept(self) -> bool:
        """Whether a field beneath may be on the allow-list."""
        return any(self._machine.patterns[number].action is None for number, _ in self.progress)

    def field(self, name: bytes) -> FieldState:
        """Give the state of a field of the document in this one."""
        if b"." in name:
            return self._path(name)
        spelt = name if name in self._machine.names else OTHER
        found = self._steps.get(spelt)
        if found is None:
            found = self._steps[spelt] = self._machine.step(self, self.progress, spelt)
        return found

    def position(self, index: bytes) -> FieldState:
        """Give the state of an element of the array in this one: rules may name its position, and need not."""
        return self._machine.either(self, self.field(index))

    def _path(self, path: bytes) -> FieldState:
        """Follow a path as update descriptions spell it, in which a number may be a position or a name.

        What either reading hides is hidden. What only one of them allows can neither be shown nor left out.
        """
        state = by_name = self
        for name in path.split(b"."):
            state = state.position(name) if name.isdigit() and state is not self else state.field(name)
            by_name = by_name.field(name)
        return state if state is by_name else self._machine.both(state, by_name, path)

    @property
    def names(self) -> frozenset[bytes]:
        """The names that the rules of the collection spell out; all others lead to the same states."""
        return self._machine.names

    @property
    def ends(self) -> frozenset[bytes] | None:
        """Names of which one stands in every event that something happens to; None when it may happen to any."""
        return self._machine.ends


class _Machine:
    """The states of the rules of one collection."""

    def __init__(self, patterns: Sequence[_Pattern]) -> None:
        self.patterns = patterns
        self.names = frozenset(name for pattern in patterns for name in pattern.names) - {_ONE, _ANY} | {ID}
        self.has_allow_list = any(pattern.action is None for pattern in patterns)
        ends = frozenset(pattern.names[-1] for pattern in patterns)
        self.ends = None if self.has_allow_list or ends & {_ONE, _ANY} else ends
        self._states: dict[tuple[_Progress, Action | None, bool], FieldState] = {}
        begin = {(number, index) for number, pattern in enumerate(patterns) for index in pattern.reached(0)}
        # Not one of the states that fields share: only in the document itself `_id` is the document's identity.
        self.root = FieldState(self, frozenset(begin), None, not self.has_allow_list)

    def step(self, state: FieldState, progress: _Progress, name: bytes) -> FieldState:
        """Give the state of a field: where the rules stand after its name."""
        if state is self.root and name == ID:
            return self._identity(progress)
        reached = {(number, at) for number, index in progress for at in self.patterns[number].after(index, name)}
        return self._arrived(reached, state.action, state.is_kept)

    def _identity(self, progress: _Progress) -> FieldState:
        """Give the state of `_id`: always kept, and only changed by rules that name it."""
        named = {(number, 1) for number, index in progress if index == 0 and self.patterns[number].names[0] == ID}
        return self._arrived(named, None, True)

    def either(self, one: FieldState, other: FieldState) -> FieldState:
        """Give the state in which what either of two says holds."""
        action = one.action if other.action is None else other.action.stricter(one.action)
        return self._state(one.progress | other.progress, action, one.is_kept or other.is_kept)

    def both(self, by_position: FieldState, by_name: FieldState, path: bytes) -> FieldState:
        """Give the state in which what either of two readings hides is hidden, and what both allow is allowed.

        A position allows all that the name does. Raises AmbiguousPath when it is a position's own rule that allows.
        """
        allowed = {each for each in by_position.progress if self.patterns[each[0]].action is None}
        furthest = dict(sorted(allowed))
        by_name_left = {self.patterns[number].names[index:] for number, index in by_name.progress & allowed}
        if by_position.is_kept != by_name.is_kept or (
            not by_name.is_kept
            and any(self.patterns[number].names[index:] not in by_name_left for number, index in furthest.items())
        ):
            raise AmbiguousPath(path)
        hiding = by_position.progress - allowed
        return self._state(hiding | (by_name.progress & allowed), by_position.action, by_name.is_kept)

    def _arrived(self, reached: Iterable[tuple[int, int]], action: Action | None, is_kept: bool) -> FieldState:
        """Take what the patterns that end here say into account."""
        left = set()
        for number, index in reached:
            pattern = self.patterns[number]
            if index < len(pattern.names):
                left.add((number, index))
            elif pattern.action is None:
                is_kept = True
            else:
                action = pattern.action.stricter(action)
        return self._state(frozenset(left), action, is_kept)

    def _state(self, progress: _Progress, action: Action | None, is_kept: bool) -> FieldState:
        if action is not None and action.kind is Kind.DROP:
            progress = frozenset()  # nothing beneath matters
        known = progress, action, is_kept
        if known not in self._states:
            self._states[known] = FieldState(self, *known)
        return self._states[known]


def fields_of(rules: Iterable[Rule], namespace: str) -> FieldState | None:
    """Give what the rules say of the documents of a collection; None when it is nothing."""
    covering = [rule for rule in rules if rule.covers(namespace)]
    patterns = [_Pattern(tuple(path.encode().split(b".")), rule.action) for rule in covering for path in rule.fields]
    return _Machine(patterns).root if patterns else None
