"""A policy applied by the compiled kernel, a batch of events in one call.

The rules stay with the reference (`paths.py`): the states that they have for a collection, and where a name leads from
each, are handed over as tables when its first event comes. The kernel gives the very events of the reference and leaves
to it those whose key changes, because the key is part of their token, and what is unusual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tailrace import kernel
from tailrace.event import ChangeEvent
from tailrace.policy.actions import Kind
from tailrace.policy.paths import OTHER, FieldState

_MOST_STATES: Final = 1_000
"""Rules with more states, as many `**` may have, are left to the reference."""
_MOST_NAMESPACES: Final = 10_000
_ACTIONS: Final = {Kind.TRUNCATE: 1, Kind.HASH: 2, Kind.MASK: 3, Kind.DROP: 4}
_NO_ACTION: Final = 0

State = tuple[int, int, bool, bool, bool]
"""The action and the length that it leaves; whether the field is kept, untouched, or may contain what is kept."""


def compiled_policy(
    event: Callable[[bytes], bytes], fields: Callable[[str], FieldState | None], key: bytes | None
) -> CompiledPolicy | None:
    """Give what applies a policy in the kernel; None where there is no kernel."""
    module = kernel.module()
    return None if module is None else CompiledPolicy(module.Policy(key), event, fields)


class CompiledPolicy:
    """Hands events to the kernel, teaches it the rules of collections, and has the reference do the rest."""

    def __init__(
        self, compiled: Any, event: Callable[[bytes], bytes], fields: Callable[[str], FieldState | None]
    ) -> None:
        self._compiled = compiled
        self._event = event
        self._fields = fields
        self._learned = 0

    def events(self, events: Sequence[bytes]) -> list[bytes]:
        """Give the events as they may leave the process."""
        given: list[bytes] = []
        while len(given) < len(events):
            made, declined, end = self._compiled.events(events, len(given))
            for index in declined:
                made[index] = self._event(made[index])
            given += made
            if end < len(events):
                self._teach(ChangeEvent(events[end]).namespace)
        return given

    def _teach(self, namespace: str) -> None:
        if self._learned >= _MOST_NAMESPACES:
            self._compiled.forget()
            self._learned = 0
        self._learned += 1
        root = self._fields(namespace)
        tables = None if root is None else tables_of(root)
        if root is None or tables is None:
            self._compiled.learn(namespace, root is None)
        else:
            ends = None if root.ends is None else sorted(root.ends)
            self._compiled.learn_rules(namespace, sorted(root.names), ends, *tables)


def tables_of(root: FieldState) -> tuple[list[State], list[int], list[int]] | None:
    """Number the states that can be reached: each of them, and by state and name where fields and positions lead.

    The names are `OTHER` and then those that rules spell out, in order. None when there are too many states.
    """
    names = [OTHER, *sorted(root.names)]
    numbers = {id(root): 0}
    states = [root]

    def number(state: FieldState) -> int:
        if id(state) not in numbers:
            numbers[id(state)] = len(states)
            states.append(state)
        return numbers[id(state)]

    fields: list[int] = []
    positions: list[int] = []
    for state in states:  # which grows meanwhile
        if len(states) > _MOST_STATES:
            return None
        fields += [number(state.field(name)) for name in names]
        positions += [number(state.position(name)) for name in names]
    return [_described(state) for state in states], fields, positions


def _described(state: FieldState) -> State:
    action = _NO_ACTION if state.action is None else _ACTIONS[state.action.kind]
    length = 0 if state.action is None else state.action.length
    return action, length, state.is_kept, state.is_untouched, state.may_contain_kept
