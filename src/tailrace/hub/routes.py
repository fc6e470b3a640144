"""Which channels an oplog entry can matter to, found by its namespace.

The answer may name a channel that has no use for the entry (the engine decides that), but never leaves one out. The
first entry of each kind in each collection is looked into; those that begin with the same bytes go the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

from tailrace.engine.scope import Scope, ScopeKind, WatchedNamespaces, split_namespace
from tailrace.oplog import transactions
from tailrace.oplog.entry import NO_TIME, OplogEntry, command_name

_REMEMBERED: Final = 50_000
_DOCUMENT_OPS: Final = frozenset({b"i", b"u", b"d"})
_SESSION_SIZE: Final = 19
_PREFIX_SIZE: Final = 46
_DOCUMENT: Final = 0x03


class Scoped(Protocol):
    """Anything that watches a scope."""

    @property
    def scope(self) -> Scope:
        """What it watches."""


R = TypeVar("R", bound=Scoped)


class Routes(Generic[R]):
    """The receivers by namespace; asked once for each entry, so a dictionary answers for nearly all of them."""

    def __init__(self) -> None:
        self._receivers: dict[R, WatchedNamespaces] = {}
        self._by_prefix: dict[bytes, tuple[R, ...]] = {}
        self._by_namespace: dict[bytes, tuple[R, ...]] = {}

    def add(self, receiver: R) -> None:
        """Let a receiver take part."""
        self._receivers[receiver] = WatchedNamespaces(receiver.scope, show_system_events=True, show_view_catalog=True)
        self._forget()

    def remove(self, receiver: R) -> None:
        """Let it go."""
        self._receivers.pop(receiver, None)
        self._forget()

    def of(self, entry: bytes) -> Iterable[R]:
        """Give the receivers that the entry can matter to."""
        try:
            start = 4 if entry[4] != _DOCUMENT else 10 + entry[10] + _SESSION_SIZE
            body = start + entry[start + 14] + _PREFIX_SIZE
            return self._by_prefix[entry[start:body]]
        except (KeyError, IndexError):
            return self._route(entry)

    def _route(self, entry: bytes) -> Iterable[R]:
        view = OplogEntry(entry)
        op = view.op
        if op in _DOCUMENT_OPS:
            found = self._of_namespace(view.namespace)
            self._remember(view, found)
            return found
        if op == b"c":
            return self._of_command(view)
        return self._of_namespace(view.namespace) if op == b"n" else ()

    def _of_command(self, view: OplogEntry) -> Iterable[R]:
        if transactions.is_commit(view, batches=True):
            if command_name(view.o) != b"applyOps" or view.previous_time != NO_TIME:
                return tuple(self._receivers)
            spaces = {operation.namespace for operation in transactions.inner_operations(view)}
            return {receiver for space in spaces for receiver in self._of_namespace(space)}
        return [receiver for receiver, spaces in self._receivers.items() if spaces.has_commands_of(view.namespace)]

    def _of_namespace(self, namespace: bytes) -> tuple[R, ...]:
        found = self._by_namespace.get(namespace)
        if found is None:
            found = tuple(receiver for receiver, spaces in self._receivers.items() if _may_watch(spaces, namespace))
            if len(self._by_namespace) >= _REMEMBERED:
                self._by_namespace.clear()
            self._by_namespace[namespace] = found
        return found

    def _remember(self, view: OplogEntry, found: tuple[R, ...]) -> None:
        """Keep the answer for entries that begin alike, when the namespace is all that those bytes hold."""
        entry = view.raw
        start = 4 if entry[4] != _DOCUMENT else 10 + entry[10] + _SESSION_SIZE
        body = start + entry[start + 14] + _PREFIX_SIZE
        if view.spans.get(b"o", (0, 0, 0))[1] != body or b"ui" not in view.spans or view.spans[b"op"][1] != start + 4:
            return
        if len(self._by_prefix) >= _REMEMBERED:
            self._by_prefix.clear()
        self._by_prefix[entry[start:body]] = found

    def _forget(self) -> None:
        self._by_prefix.clear()
        self._by_namespace.clear()


def _may_watch(spaces: WatchedNamespaces, namespace: bytes) -> bool:
    """Watch too much rather than too little: system collections, whatever the options say.

    Commands inside transactions are logged under the `$cmd` of their database.
    """
    if namespace in spaces or spaces.has_commands_of(namespace) or spaces.is_view_catalog(namespace):
        return True
    database, _ = split_namespace(namespace)
    return spaces.scope.kind is not ScopeKind.COLLECTION and database == spaces.scope.database
