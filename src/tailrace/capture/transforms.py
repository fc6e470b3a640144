"""Changes to events and records that the settings ask for: filter, add fields, flatten, route by a field.

Each is a pure function, made once from its settings. They run behind the field policy, so that they see what may leave
the process and nothing else, and before the format. Topics are renamed where topics are named (`sinks/topics.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bson import json_util

from tailrace import raw
from tailrace.capture.formats.format import Format
from tailrace.capture.record import Record
from tailrace.engine.expression import compile_pipeline
from tailrace.errors import EventUnconvertible, SettingsError, TailraceError
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json
from tailrace.settings import TransformSettings

EventChange = Callable[[bytes], bytes | None]
"""Gives what an event becomes; None leaves it out."""
RecordChange = Callable[[Record], Record]

_SERVER: Final = "7.0"
"""Whose expressions these are."""
_IMAGES: Final = ("fullDocument", "fullDocumentBeforeChange")
_position = re.compile(r"(^|\.)\d+(\.|$)")
DDL: Final = "~ddl"
"""The namespace of copies that go to the topic of DDL events."""
DOCUMENT_OPERATIONS: Final = frozenset({"insert", "update", "replace", "delete", "read"})
ALWAYS_REPORTED: Final = frozenset({"drop", "rename", "dropDatabase", "invalidate"})
"""Events about collections that every stream has: they also stay in the topics, because states depend on them."""


def keep(match: str) -> EventChange:
    """Keep the events that a query, as of `$match`, fits."""
    run = _compiled([{"$match": _parsed(match)}])
    return lambda event: event if run(event) is not None else None


def add_fields(fields: str) -> EventChange:
    """Add fields to the documents of events; values are constants or expressions over the event, such as `$ns.coll`."""
    given = _parsed(fields)
    run = _compiled([{"$addFields": {f"fullDocument.{name}": value for name, value in given.items()}}])
    return lambda event: run(event) if ChangeEvent(event).has_full_document else event


def flatten(separator: str) -> EventChange:
    """Bring nested fields of documents, and paths of updates, to one level; arrays stay as they are."""

    def change(event: bytes) -> bytes:
        decoded = extended_json.decode(event)
        for name in _IMAGES:
            if isinstance(decoded.get(name), Mapping):
                decoded[name] = flat(decoded[name], separator)
        update = decoded.get("updateDescription")
        if update:
            updated = {_spelt(path, separator): value for path, value in update["updatedFields"].items()}
            update["updatedFields"] = flat(updated, separator)
            update["removedFields"] = [_spelt(path, separator) for path in update["removedFields"]]
        return raw.document(raw.body(raw.encode(decoded)))

    return change


def flat(document: Mapping[str, Any], separator: str, prefix: str = "") -> dict[str, Any]:
    """Give a document with its nested fields on one level."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, separator, f"{prefix}{name}{separator}")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _spelt(path: str, separator: str) -> str:
    """Spell a path of an update as the flattened field; one into an array has no such field."""
    return path if _position.search(path) else path.replace(".", separator)


def route(field: str) -> RecordChange:
    """Send a record to the topic of its collection and of a field's value; without the field, to the collection's."""
    names = tuple(part.encode() for part in field.split("."))

    def change(record: Record) -> Record:
        view = ChangeEvent(record.event)
        for image in (view.full_document, view.full_document_before_change, view.document_key):
            value = None if image is None else _at(image, names)
            if value is not None:
                return record._replace(namespace=f"{record.namespace}.{value}")
        return record

    return change


def _at(document: bytes, names: Sequence[bytes]) -> str | None:
    """Give the text of a field, if it is one that can name a topic."""
    found = raw.field(document, names[0])
    if found is None:
        return None
    if len(names) > 1:
        return _at(found.data, names[1:]) if found.kind == raw.DOCUMENT else None
    value = raw.to_python(*found)
    return str(value) if isinstance(value, str | int | bool) else None


class TransformedFormat(Format):
    """Applies transforms to every event, leaves the record to another format, and copies what is no document's."""

    def __init__(
        self, inner: Format, events: Sequence[EventChange], records: Sequence[RecordChange], *, copies_ddl: bool = False
    ) -> None:
        super().__init__()
        self._inner = inner
        self._events = events
        self._changes = records
        self._copies_ddl = copies_ddl
        self.content_type = inner.content_type

    def _records(self, event: bytes) -> Sequence[Record]:
        """Give the records for one event."""
        return self.batch([event])

    def batch(self, events: Sequence[bytes]) -> Sequence[Record]:
        """Give the records for many events."""
        kept = [changed for event in events if (changed := self._changed(event)) is not None]
        return [copy for record in self._inner.batch(kept) for copy in self._routed(record)]

    def _changed(self, event: bytes) -> bytes | None:
        changed: bytes | None = event
        try:
            for change in self._events:
                if changed is None:
                    return None
                changed = change(changed)
        except TailraceError as error:
            raise EventUnconvertible(f"a transform cannot be applied: {error.message}") from error
        return changed

    def _routed(self, record: Record) -> list[Record]:
        if record.operation not in DOCUMENT_OPERATIONS and self._copies_ddl:
            copy = record._replace(namespace=DDL)
            return [record, copy] if record.operation in ALWAYS_REPORTED else [copy]
        for change in self._changes:
            record = change(record)
        return [record]


def transformed(inner: Format, given: Sequence[TransformSettings], *, copies_ddl: bool = False) -> Format:
    """Put the transforms of the settings before a format; the format itself where there are none."""
    events, records = [], []
    for number, one in enumerate(given):
        where = f"capture.transforms.{number}"
        if one.kind == "filter":
            events.append(keep(_needed(one.match, where, "match")))
        elif one.kind == "add-fields":
            events.append(add_fields(_needed(one.fields, where, "fields")))
        elif one.kind == "flatten":
            events.append(flatten(one.separator))
        elif one.kind == "route":
            records.append(route(_needed(one.field, where, "field")))
    if not (events or records or copies_ddl):
        return inner
    return TransformedFormat(inner, events, records, copies_ddl=copies_ddl)


def renames_of(given: Sequence[TransformSettings]) -> tuple[tuple[str, str], ...]:
    """Give the patterns of topics and what they are replaced by."""
    found = []
    for number, one in enumerate(given):
        if one.kind == "rename-topic":
            where = f"capture.transforms.{number}"
            pattern = _needed(one.pattern, where, "pattern")
            try:
                re.compile(pattern)
            except re.error as error:
                raise SettingsError(f"{where}: {pattern!r} is no pattern: {error}", hint="Correct it.") from None
            replacement = _needed(one.replacement, where, "replacement")
            try:
                re.sub(pattern, replacement, "")
            except (re.error, IndexError) as error:
                raise SettingsError(
                    f"{where}: {replacement!r} cannot replace {pattern!r}: {error}", hint="\\1 is its first group."
                ) from None
            found.append((pattern, replacement))
    return tuple(found)


def _needed(value: str | None, where: str, name: str) -> str:
    if value is None:
        raise SettingsError(f"{where} needs {name}", hint=f"Set {name} of this transform.")
    return value


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json_util.loads(text)
    except ValueError as error:
        raise SettingsError(f"a transform's {text!r} is not JSON: {error}", hint="Write a JSON object.") from None
    if not isinstance(found, dict):
        raise SettingsError(f"a transform's {text!r} is no JSON object", hint="Write a JSON object.")
    return found


def _compiled(stages: Sequence[Mapping[str, Any]]) -> Callable[[bytes], bytes | None]:
    try:
        return compile_pipeline(stages, server_version=_SERVER)
    except TailraceError as error:
        raise SettingsError(f"a transform is refused: {error.message}", hint="Write it as MongoDB does.") from None
