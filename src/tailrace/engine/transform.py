"""Third stage: an operation becomes an event, in the dialect of the upstream server.

One function per kind of operation, each from raw bytes to raw bytes. The order of an event's fields is
the server's: transaction or rename fields, `_id`, `operationType`, `clusterTime`, `collectionUUID`,
`wallTime`, `fullDocument`, `ns`, `documentKey`, then what the operation has besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from tailrace import raw
from tailrace.engine import commands
from tailrace.engine.commands import Described
from tailrace.engine.dialect import Dialect
from tailrace.engine.event import Change, Event
from tailrace.engine.expression.pipeline import HeaderFilter
from tailrace.engine.options import StreamSpec
from tailrace.engine.recipe import RecipeBook
from tailrace.engine.scope import VIEW_CATALOG, split_namespace
from tailrace.engine.shard_keys import document_key
from tailrace.engine.tokens import TokenVersion, event_token, id_element
from tailrace.errors import OplogEntryInvalid
from tailrace.oplog.update_diff import is_replacement, update_description

_TYPES_REMEMBERED: dict[bytes, bytes] = {}
_NAMESPACES_REMEMBERED: Final = 100_000


class Transform:
    """Makes events of changes, and leaves out those that turn out to be none."""

    def __init__(
        self,
        spec: StreamSpec,
        dialect: Dialect,
        version: TokenVersion,
        wanted: HeaderFilter | None = None,
        shard_key: Callable[[bytes], Sequence[bytes] | None] = lambda uuid: None,
    ) -> None:
        self._dialect = dialect
        self._version = version
        self._expanded = spec.options.show_expanded_events
        self._raw_updates = spec.options.show_raw_update_description
        self._disambiguate = self._expanded and dialect.has_disambiguated_paths
        self._ns_elements: dict[bytes, bytes] = {}
        self._wanted = wanted
        self._shard_key = shard_key
        self._by_op: dict[bytes, Callable[[Change], Event | None]] = {
            b"i": self._insert,
            b"u": self._update,
            b"d": self._delete,
            b"c": self._command,
            b"n": self._note,
        }

    def __call__(self, changes: Iterable[Change | None]) -> Iterator[Event | None]:
        """Give the events of changes."""
        for change in changes:
            if change is None:
                yield None
                continue
            event = self.event(change)
            if event is not None:
                yield event

    def event(self, change: Change) -> Event | None:
        """Make the event of a change."""
        make = self._by_op.get(change.operation.op)
        if make is None:
            raise OplogEntryInvalid("an entry of an unknown kind", entry=change.operation.raw)
        return make(change)

    def recipe_book(self, version: int | None) -> RecipeBook | None:
        """Give what makes plain events fast; None where they depend on more than their entry."""
        if version is None or self._raw_updates or self._disambiguate:
            return None
        return RecipeBook(
            version=version,
            has_wall_time=self._dialect.has_wall_time,
            shows_uuid=self._expanded,
            type_element=type_element,
            namespace_element=self.namespace_element,
            may_be_sharded=lambda uuid: self._shard_key_of(uuid) is not None,
        )

    # --- documents

    def _insert(self, change: Change) -> Event | None:
        operation = change.operation
        if self._is_view(change):
            return self._described(change, commands.view_created(operation))
        document = operation.o
        key = operation.o2 or document_key(document, self._shard_key_of(operation.uuid) or ())
        return self._document_event(change, b"insert", key, full_document=document)

    def _shard_key_of(self, uuid: bytes | None) -> Sequence[bytes] | None:
        return None if uuid is None or self._dialect.logs_keys_of_inserts else self._shard_key(uuid)

    def _update(self, change: Change) -> Event | None:
        operation = change.operation
        if self._is_view(change):
            return self._described(change, commands.view_modified(operation))
        update, key = operation.o, operation.o2
        if key is None:
            raise OplogEntryInvalid("an update without the key of its document", entry=operation.raw)
        if is_replacement(update):
            return self._document_event(change, b"replace", key, full_document=update)
        if self._raw_updates:
            tail = raw.element(raw.DOCUMENT, b"rawUpdateDescription", update)
        else:
            description = update_description(update, disambiguate=self._disambiguate)
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
        if self._wanted is not None and not self.is_wanted(operation_type, namespace):
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

    def is_wanted(self, operation_type: bytes, namespace: bytes) -> bool:
        """Ask the user's filter by type and namespace. Never for commands: they may end the stream."""
        database, collection = split_namespace(namespace)
        wanted = self._wanted
        return wanted is None or wanted(operation_type.decode(), database.decode(), collection.decode())

    # --- commands, views and no-ops

    def _command(self, change: Change) -> Event | None:
        described = commands.describe_command(change.operation)
        return None if described is None else self._described(change, described)

    def _note(self, change: Change) -> Event | None:
        described = commands.describe_note(change.operation)
        return None if described is None else self._described(change, described)

    def _described(self, change: Change, what: Described) -> Event | None:
        if not self._expanded and what.is_expanded:
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
        if self._expanded and what.description is not None:
            parts.append(raw.element(raw.DOCUMENT, b"operationDescription", what.description))
        if what.state_before is not None:
            parts.append(raw.element(raw.DOCUMENT, b"stateBeforeChange", what.state_before))
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
        if self._expanded and uuid is not None:
            yield b"\x05collectionUUID\x00\x10\x00\x00\x00\x04" + uuid
        if self._dialect.has_wall_time and change.wall is not None:
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
        """Tell a view's definition: the catalog of views shows as views, not as documents."""
        namespace = change.operation.namespace
        return namespace.endswith(VIEW_CATALOG) and split_namespace(namespace)[1] == VIEW_CATALOG


def type_element(operation_type: bytes) -> bytes:
    """Give the `operationType` of an event."""
    element = _TYPES_REMEMBERED.get(operation_type)
    if element is None:
        element = raw.element(raw.STRING, b"operationType", raw.string(operation_type))
        _TYPES_REMEMBERED[operation_type] = element
    return element
