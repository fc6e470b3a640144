"""Third stage: an operation becomes an event, in the dialect of the upstream server.

One function per kind of operation, each from raw bytes to raw bytes. The order of an event's fields is
the server's: transaction or rename fields, `_id`, `operationType`, `clusterTime`, `collectionUUID`,
`wallTime`, `fullDocument`, `ns`, `documentKey`, then what the operation has besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace import raw
from tailrace.engine import commands
from tailrace.engine.commands import Described
from tailrace.engine.dialect import Dialect
from tailrace.engine.event import Change, Event
from tailrace.engine.expression.pipeline import HeaderFilter
from tailrace.engine.options import StreamSpec
from tailrace.engine.scope import VIEW_CATALOG, split_namespace
from tailrace.engine.tokens import TokenVersion, event_token, id_element
from tailrace.errors import OplogEntryInvalid
from tailrace.oplog.update_diff import is_replacement, update_description

_TYPES_REMEMBERED: dict[bytes, bytes] = {}
_NAMESPACES_REMEMBERED: Final = 100_000


@dataclass(frozen=True, slots=True)
class EventForm:
    """What the events of one stream show."""

    has_wall_time: bool
    expanded: bool
    raw_updates: bool
    disambiguates: bool
    logs_keys_of_inserts: bool
    names_namespace_types: bool

    @classmethod
    def of(cls, spec: StreamSpec, dialect: Dialect) -> EventForm:
        """Follow the server's habits and the client's options."""
        expanded = spec.options.show_expanded_events
        return cls(
            dialect.has_wall_time,
            expanded,
            spec.options.show_raw_update_description,
            expanded and dialect.has_disambiguated_paths,
            dialect.logs_keys_of_inserts,
            expanded and dialect.names_namespace_types,
        )


class Transform:
    """Makes events of changes, and leaves out those that turn out to be none."""

    def __init__(
        self,
        spec: StreamSpec,
        dialect: Dialect,
        version: TokenVersion,
        header_filter: HeaderFilter | None = None,
        shard_key: Callable[[bytes], Sequence[bytes] | None] = lambda uuid: None,
    ) -> None:
        self.form = EventForm.of(spec, dialect)
        self._version = version
        self._ns_elements: dict[bytes, bytes] = {}
        self._header_filter = header_filter
        self._shard_key = shard_key
        self._by_op: dict[bytes, Callable[[Change], Event | None]] = {
            b"i": self._insert,
            b"u": self._update,
            b"d": self._delete,
            b"c": self._command,
            b"n": self._note,
        }

    def __call__(self, changes: list[Change], given: list[Event]) -> None:
        """Append the events of changes; when it raises, those before the error are there."""
        for change in changes:
            event = self.event(change)
            if event is not None:
                given.append(event)

    def event(self, change: Change) -> Event | None:
        """Make the event of a change."""
        make = self._by_op.get(change.operation.op)
        if make is None:
            raise OplogEntryInvalid("an entry of an unknown kind", entry=change.operation.raw)
        return make(change)

    # --- documents

    def _insert(self, change: Change) -> Event | None:
        operation = change.operation
        if self._is_view(change):
            return self._described(change, commands.view_created(operation))
        document = operation.o
        key = operation.o2 or document_key(document, self._shard_key_of(operation.uuid) or ())
        return self._document_event(change, b"insert", key, full_document=document)

    def _shard_key_of(self, uuid: bytes | None) -> Sequence[bytes] | None:
        return None if uuid is None or self.form.logs_keys_of_inserts else self._shard_key(uuid)

    def _update(self, change: Change) -> Event | None:
        operation = change.operation
        if self._is_view(change):
            return self._described(change, commands.view_modified(operation))
        update, key = operation.o, operation.o2
        if key is None:
            raise OplogEntryInvalid("an update without the key of its document", entry=operation.raw)
        if is_replacement(update):
            return self._document_event(change, b"replace", key, full_document=update)
        if not self.passes_filter(b"update", operation.namespace):
            return None
        if self.form.raw_updates:
            tail = raw.element(raw.DOCUMENT, b"rawUpdateDescription", update)
        else:
            description = update_description(update, disambiguate=self.form.disambiguates)
            tail = raw.element(raw.DOCUMENT, b"updateDescription", description)
        return self._document_event(change, b"update", key, tail=tail)

    def _delete(self, change: Change) -> Event | None:
        operation = change.operation
        if self._is_view(change):
            return self._described(change, commands.view_dropped(operation))
        return self._document_event(change, b"delete", operation.o)

    def _document_event(
        self,
        change: Change,
        operation_type: bytes,
        key: bytes,
        *,
        full_document: bytes | None = None,
        tail: bytes = b"",
    ) -> Event | None:
        operation = change.operation
        uuid, namespace = operation.uuid, operation.namespace
        if not self.passes_filter(operation_type, namespace):
            return None
        version = self._version(change.time, change.number)
        token = event_token(version, change.time, change.number, uuid, operation_type, key)
        parts = [
            change.session,
            *self._head(change, id_element(token), operation_type, uuid),
            raw.element(raw.DOCUMENT, b"fullDocument", full_document) if full_document is not None else b"",
            self.namespace_element(namespace),
            raw.element(raw.DOCUMENT, b"documentKey", key),
            tail,
        ]
        return Event(
            raw.document(*parts),
            change.time,
            namespace,
            operation_type.decode(),
            change,
        )

    def passes_filter(self, operation_type: bytes, namespace: bytes) -> bool:
        """Ask the user's filter by type and namespace. Never for commands: they may end the stream."""
        if self._header_filter is None:
            return True
        try:
            database, _, collection = namespace.decode().partition(".")
        except UnicodeDecodeError:
            raise OplogEntryInvalid(f"the namespace {namespace!r} of an entry is not a string") from None
        return self._header_filter(operation_type.decode(), database, collection)

    # --- commands, views and no-ops

    def _command(self, change: Change) -> Event | None:
        described = commands.describe_command(change.operation)
        return None if described is None else self._described(change, described)

    def _note(self, change: Change) -> Event | None:
        described = commands.describe_note(change.operation)
        return None if described is None else self._described(change, described)

    def _described(self, change: Change, what: Described) -> Event | None:
        if not self.form.expanded and what.is_expanded:
            return None
        version = self._version(change.time, change.number)
        uuid = change.operation.uuid
        token = event_token(version, change.time, change.number, uuid, what.operation_type, what.key, what.description)
        shown_uuid = None if what.is_view else uuid
        parts = [
            change.session,
            what.first,
            *self._head(change, id_element(token), what.operation_type, shown_uuid),
        ]
        if what.has_namespace:
            parts.append(self.namespace_element(what.namespace))
        if self.form.expanded and what.description is not None:
            parts.append(raw.element(raw.DOCUMENT, b"operationDescription", what.description))
        if what.state_before is not None:
            parts.append(raw.element(raw.DOCUMENT, b"stateBeforeChange", what.state_before))
        if self.form.names_namespace_types and what.namespace_type is not None:
            parts.append(raw.element(raw.STRING, b"nsType", raw.string(what.namespace_type)))
        return Event(
            raw.document(*parts),
            change.time,
            what.namespace,
            what.operation_type.decode(),
            change,
        )

    # --- parts that all events have

    def _head(self, change: Change, token: bytes, operation_type: bytes, uuid: bytes | None) -> Iterator[bytes]:
        yield token
        yield type_element(operation_type)
        yield b"\x11clusterTime\x00" + change.time.to_bytes(8, "little")
        if self.form.expanded and uuid is not None:
            yield b"\x05collectionUUID\x00\x10\x00\x00\x00\x04" + uuid
        if self.form.has_wall_time and change.wall is not None:
            yield b"\x09wallTime\x00" + change.wall

    def namespace_element(self, namespace: bytes) -> bytes:
        """Give the `ns` of an event."""
        element = self._ns_elements.get(namespace)
        if element is None:
            if len(self._ns_elements) >= _NAMESPACES_REMEMBERED:
                self._ns_elements.clear()
            element = raw.element(raw.DOCUMENT, b"ns", commands.namespace_document(*split_namespace(namespace)))
            self._ns_elements[namespace] = element
        return element

    def _is_view(self, change: Change) -> bool:
        return self.is_view_catalog(change.operation.namespace)

    @staticmethod
    def is_view_catalog(namespace: bytes) -> bool:
        """Tell the catalog of views: what it holds shows as views, not as documents."""
        return namespace.endswith(VIEW_CATALOG) and split_namespace(namespace)[1] == VIEW_CATALOG


def type_element(operation_type: bytes) -> bytes:
    """Give the `operationType` of an event."""
    element = _TYPES_REMEMBERED.get(operation_type)
    if element is None:
        element = raw.element(raw.STRING, b"operationType", raw.string(operation_type))
        _TYPES_REMEMBERED[operation_type] = element
    return element


def document_key(document: bytes, shard_key: Sequence[bytes] = ()) -> bytes:
    """Make the key of an inserted document: the values of the shard key by their paths, and `_id`."""
    elements = []
    for path in shard_key if b"_id" in shard_key else (*shard_key, b"_id"):
        found = raw.find_path(document, *path.split(b"."))
        if found is not None:
            elements.append(raw.element(found[0], path, document[found[1] : found[2]]))
    return raw.document(*elements)
