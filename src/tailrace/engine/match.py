"""First stage: keep the oplog entries that can become events of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from tailrace import raw
from tailrace.engine.dialect import Dialect
from tailrace.engine.options import StreamSpec
from tailrace.engine.scope import ScopeKind, WatchedNamespaces
from tailrace.oplog import transactions
from tailrace.oplog.entry import OplogEntry, command_name, command_target

_EXPANDED_COMMANDS: Final = frozenset({b"create", b"createIndexes", b"commitIndexBuild", b"dropIndexes", b"collMod"})
_INDEX_BUILDS: Final = frozenset({b"startIndexBuild"})
_MIGRATED_COMMANDS: Final = frozenset({b"create", b"createIndexes"})
_EXPANDED_NOTES: Final = frozenset({b"shardCollection", b"refineCollectionShardKey", b"reshardCollection"})
_RESHARDING_NOTES: Final = frozenset({b"reshardBegin", b"reshardDoneCatchUp"})


class Relevance(Enum):
    """What an entry is to the stream."""

    NONE = "none"
    CHANGE = "change"
    """The entry itself becomes an event."""
    COMMIT = "commit"
    """The entry makes a transaction visible, whose operations may become events."""


class Relevant:
    """Decides what an entry, or an operation inside a transaction, is to the stream."""

    def __init__(self, spec: StreamSpec, dialect: Dialect) -> None:
        options = spec.options
        self._namespaces = WatchedNamespaces(
            spec.scope,
            show_system_events=options.show_system_events,
            show_view_catalog=options.show_system_events and dialect.counts_view_catalog_as_system,
        )
        self._is_collection = spec.scope.kind is ScopeKind.COLLECTION
        self._expanded = options.show_expanded_events
        index_builds = options.show_system_events and dialect.shows_index_builds
        self._expanded_commands = _EXPANDED_COMMANDS | _INDEX_BUILDS if index_builds else _EXPANDED_COMMANDS
        self._system = options.show_system_events
        self.shows_migrations = options.show_migration_events
        """Whether what a chunk migration wrote is shown."""
        self._batches = dialect.logs_batches_of_writes
        self._new_shards = spec.from_router or dialect.shows_new_shard_to_all

    def is_watched(self, namespace: bytes) -> bool:
        """Tell whether documents of a namespace become events; among the expanded ones definitions of views do too."""
        return namespace in self._namespaces or (self._expanded and self._namespaces.is_view_catalog(namespace))

    def __call__(self, entry: OplogEntry) -> Relevance:
        """Judge an entry of the oplog."""
        op = entry.op
        if op == b"c" and transactions.is_commit(entry, batches=self._batches):
            return Relevance.COMMIT
        if not self.operation(entry, op):
            return Relevance.NONE
        if entry.from_migrate and not self.shows_migrations and not self._is_shown_migration(entry, op):
            return Relevance.NONE
        return Relevance.CHANGE

    def operation(self, entry: OplogEntry, op: bytes) -> bool:
        """Judge one operation by its namespace and kind."""
        namespace = entry.namespace
        if op in (b"i", b"u", b"d"):
            return self.is_watched(namespace)
        if op == b"c":
            return self._namespaces.has_commands_of(namespace) and self._command(entry.o)
        if op == b"n":
            return namespace in self._namespaces and self._note(entry.o2)
        return False

    def _command(self, command: bytes) -> bool:
        name = command_name(command)
        if name == b"dropDatabase":
            # A collection's stream ended with the drop of the collection, and one started after
            # that must not see this.
            return not self._is_collection
        target = command_target(command)
        if target is None:
            return False
        if name == b"renameCollection":
            return target in self._namespaces or self._renamed_to(command) in self._namespaces
        if name == b"drop" or (self._expanded and name in self._expanded_commands):
            return self._namespaces.has_collection(target)
        return False

    @staticmethod
    def _renamed_to(command: bytes) -> bytes:
        span = raw.find(command, b"to")
        return raw.string_at(command, span[1]) if span and span[0] == raw.STRING else b""

    def _note(self, note: bytes | None) -> bool:
        """Judge a no-op: only few tell of something that happened to a collection."""
        if note is None:
            return False
        name = command_name(note) if note != raw.EMPTY else b""
        if name == b"migrateLastChunkFromShard":
            return self._system and self._expanded
        if name in _EXPANDED_NOTES:
            return self._expanded
        if name == b"migrateChunkToNewShard":  # as 7.0 writes it
            return self._new_shards
        if name in _RESHARDING_NOTES:  # by reading, as later servers write it
            return True
        kind = note_type(note)
        return (kind == b"migrateChunkToNewShard" and self._new_shards) or kind in _RESHARDING_NOTES

    def _is_shown_migration(self, entry: OplogEntry, op: bytes) -> bool:
        """System events include the collections and indexes that a migration made."""
        return self._system and op == b"c" and command_name(entry.o) in _MIGRATED_COMMANDS


def note_type(note: bytes) -> bytes:
    """Give the `type` of a no-op's `o2`, empty when it has none."""
    span = raw.find(note, b"type")
    return raw.string_at(note, span[1]) if span and span[0] == raw.STRING else b""


def match(entries: Sequence[bytes], relevant: Relevant, matched: list[tuple[OplogEntry, Relevance]]) -> None:
    """The stage: append the entries that matter; when it raises, those before the error are there."""
    for entry in entries:
        view = OplogEntry(entry)
        relevance = relevant(view)
        if relevance is not Relevance.NONE:
            matched.append((view, relevance))
