"""What commands, view definitions and no-ops in the oplog say in an event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tailrace import raw
from tailrace.engine.match import note_type
from tailrace.engine.scope import split_namespace
from tailrace.errors import OplogEntryInvalid
from tailrace.oplog.entry import OplogEntry, command_name, command_target
from tailrace.raw import Value

_CLASSIC: Final = frozenset(
    {
        b"drop",
        b"rename",
        b"dropDatabase",
        b"kNewShardDetected",
        b"migrateChunkToNewShard",
        b"reshardBegin",
        b"reshardDoneCatchUp",
    }
)
_BUCKETS: Final = b"system.buckets."
_RESHARDING: Final = (b"reshardBegin", b"reshardDoneCatchUp")


@dataclass(frozen=True, slots=True)
class Described:
    """An event that is not about a document."""

    operation_type: bytes
    namespace: bytes
    description: bytes | None = None
    """`operationDescription`: part of the token, and shown among the expanded events."""
    key: bytes | None = None
    """What stands for the documentKey in the token; never shown."""
    first: bytes = b""
    """An element the event begins with."""
    state_before: bytes | None = None
    namespace_type: bytes | None = None
    """What a `create` made: `nsType`, where servers tell it."""
    is_view: bool = False
    has_namespace: bool = True

    @property
    def is_expanded(self) -> bool:
        """Whether only streams with `showExpandedEvents` show it."""
        return self.operation_type not in _CLASSIC


# --- commands


def describe_command(operation: OplogEntry) -> Described | None:
    """Describe a logged command; None when it is none that events tell of."""
    command = operation.o
    describe = _COMMANDS.get(command_name(command))
    if describe is None:
        return None
    database, _ = split_namespace(operation.namespace)
    target = command_target(command)
    return describe(operation, command, database, b"%b.%b" % (database, target or b""))


def _drop(_: OplogEntry, __: bytes, ___: bytes, namespace: bytes) -> Described:
    return Described(b"drop", namespace)


def _drop_database(_: OplogEntry, __: bytes, database: bytes, ___: bytes) -> Described:
    return Described(b"dropDatabase", database)


def _rename(operation: OplogEntry, command: bytes, _: bytes, __: bytes) -> Described:
    source = command_target(command)
    span = raw.find(command, b"to")
    if source is None or span is None or span[0] != raw.STRING:
        raise OplogEntryInvalid("a rename without its two names", entry=operation.raw)
    target = namespace_document(*split_namespace(raw.string_at(command, span[1])))
    to = raw.element(raw.DOCUMENT, b"to", target)
    details = []
    for kind, name, start, end in raw.elements(command):
        if name == b"to":
            details.append(to)
        elif name not in (b"renameCollection", b"stayTemp"):
            details.append(raw.element(kind, name, command[start:end]))
    return Described(b"rename", source, raw.document(*details), first=to)


def _create(_: OplogEntry, command: bytes, __: bytes, namespace: bytes) -> Described:
    return Described(b"create", namespace, raw.without(command, b"create"), namespace_type=b"collection")


def _create_indexes(_: OplogEntry, command: bytes, __: bytes, namespace: bytes) -> Described:
    indexes = _index_list(raw.without(command, b"createIndexes"))
    return Described(b"createIndexes", namespace, indexes)


def _commit_index_build(op: OplogEntry, command: bytes, _: bytes, namespace: bytes) -> Described:
    return Described(b"createIndexes", namespace, _indexes_of_build(op, command))


def _start_index_build(op: OplogEntry, command: bytes, _: bytes, namespace: bytes) -> Described:
    return Described(b"startIndexBuild", namespace, _indexes_of_build(op, command))


def _indexes_of_build(op: OplogEntry, command: bytes) -> bytes:
    indexes = raw.field(command, b"indexes")
    if indexes is None or indexes.kind != raw.ARRAY:
        raise OplogEntryInvalid("an index build without its indexes", entry=op.raw)
    return raw.document(raw.element(raw.ARRAY, b"indexes", indexes.data))


def _drop_indexes(operation: OplogEntry, _: bytes, __: bytes, namespace: bytes) -> Described:
    return Described(b"dropIndexes", namespace, _index_list(operation.o2 or raw.EMPTY))


def _coll_mod(operation: OplogEntry, command: bytes, _: bytes, namespace: bytes) -> Described:
    return Described(
        b"modify",
        namespace,
        raw.without(command, b"collMod"),
        state_before=_state_before(operation.o2 or raw.EMPTY),
    )


def _index_list(index: bytes) -> bytes:
    return raw.document(raw.element(raw.ARRAY, b"indexes", raw.array([Value(raw.DOCUMENT, index)])))


def _state_before(options: bytes) -> bytes:
    return raw.document(
        *(
            raw.element(kind, name.removesuffix(b"_old"), options[start:end])
            for kind, name, start, end in raw.elements(options)
            if name in (b"collectionOptions_old", b"indexOptions_old")
        )
    )


_COMMANDS: Final[dict[bytes, Callable[[OplogEntry, bytes, bytes, bytes], Described]]] = {
    b"drop": _drop,
    b"dropDatabase": _drop_database,
    b"renameCollection": _rename,
    b"create": _create,
    b"createIndexes": _create_indexes,
    b"startIndexBuild": _start_index_build,
    b"commitIndexBuild": _commit_index_build,
    b"dropIndexes": _drop_indexes,
    b"collMod": _coll_mod,
}


# --- views: their definitions are documents whose `_id` is the view's namespace


def view_created(operation: OplogEntry) -> Described:
    """Describe a view that was made."""
    on = raw.field(operation.o, b"viewOn")
    is_series = on is not None and on.kind == raw.STRING and raw.string_at(on.data).startswith(_BUCKETS)
    described = _view(operation, b"create", raw.without(operation.o, b"_id"))
    return replace(described, namespace_type=b"timeseries" if is_series else b"view")


def view_modified(operation: OplogEntry) -> Described:
    """Describe a view that was changed."""
    return _view(operation, b"modify", raw.without(operation.o, b"_id"))


def view_dropped(operation: OplogEntry) -> Described:
    """Describe a view that was dropped."""
    return _view(operation, b"drop", None)


def _view(operation: OplogEntry, operation_type: bytes, definition: bytes | None) -> Described:
    name = raw.field(operation.o, b"_id")
    if name is None or name.kind != raw.STRING:
        raise OplogEntryInvalid("a view without a name", entry=operation.raw)
    return Described(operation_type, raw.string_at(name.data), definition, is_view=True)


# --- no-ops


def describe_note(operation: OplogEntry) -> Described | None:
    """Describe a no-op that tells of something; None for all others."""
    note = operation.o2
    if note is None:
        return None
    kind = note_type(note)
    if kind == b"migrateChunkToNewShard":
        return _topology(operation, b"kNewShardDetected", note)
    uuid = raw.field(note, b"reshardingUUID")
    resharding = b"" if uuid is None else raw.element(uuid.kind, b"reshardingUUID", uuid.data)
    if kind in _RESHARDING:
        return _topology(operation, kind, note, resharding)
    name = command_name(note)
    first = resharding if name in _RESHARDING else b""  # by reading, as later servers than 7.0 write it
    return Described(name, operation.namespace, raw.without(note, name), first=first)


def _topology(operation: OplogEntry, operation_type: bytes, note: bytes, first: bytes = b"") -> Described:
    """Describe a change of the cluster: the whole note stands for the key in its token."""
    return Described(
        operation_type,
        operation.namespace,
        key=raw.document(raw.element(raw.DOCUMENT, b"_id", note)),
        first=first,
        has_namespace=False,
    )


def namespace_document(database: bytes, collection: bytes) -> bytes:
    """Make `{db, coll}`, or `{db}` of a whole database."""
    parts = [raw.element(raw.STRING, b"db", raw.string(database))]
    if collection:
        parts.append(raw.element(raw.STRING, b"coll", raw.string(collection)))
    return raw.document(*parts)
