"""One document: what its records leave of it, in whatever order they come.

An update that brings no document is applied to the document before it. When nobody knows that one, the update is
handed back: a document is never invented, and a lookup that found nothing is never taken for a delete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from tailrace import raw
from tailrace.fold.ends import Moment
from tailrace.fold.update_description import apply_update
from tailrace.token import keystring


def id_of(document_key: Mapping[str, Any]) -> bytes:
    """Give bytes that are equal for equal `_id`s, and sort like them."""
    return id_of_value(raw.from_python(document_key["_id"]))


def id_of_value(value: raw.Value) -> bytes:
    """Give the same for an `_id` in BSON."""
    return keystring.encode([value])[0]


BASE: Final = "base"
"""Operation of the state that is known already: everything up to its moment is in it."""
DATA_OPERATIONS: Final = ("insert", "update", "replace", "delete", "read")
BASE_UNKNOWN: Final = "base-unknown"
DELTA_MISSING: Final = "delta-missing"


class KeyRecord(Protocol):
    """A record about one document."""

    @property
    def moment(self) -> Moment:
        """When it takes effect."""

    @property
    def operation(self) -> str:
        """operationType, or `BASE`."""

    @property
    def document_key(self) -> bytes | None:
        """The documentKey as BSON."""


class DocumentRecord(KeyRecord, Protocol):
    """What a record says about one document."""

    @property
    def document(self) -> bytes | None:
        """The whole document after it, when the record has it."""

    @property
    def update(self) -> bytes | None:
        """What an update changed, when the record has that."""


Each = TypeVar("Each", bound=DocumentRecord)


@dataclass(slots=True)
class Fold(Generic[Each]):
    """A document after all its records."""

    newest: Each | None = None
    """The record that brought it to this state."""
    document: bytes | None = None
    """None when it is gone, or was never known as a whole."""
    is_deleted: bool = False
    is_changed: bool = False
    """Whether there is something newer than the base."""
    unknown: list[tuple[Each, str]] = field(default_factory=list)
    """Records that could not be applied, with the cause."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How the documents of some records are written."""

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


def fold(records: Sequence[Each], spelling: Spelling) -> Fold[Each]:
    """Give what the records of one document leave of it."""
    state: _State[Each] = _State(spelling)
    for record in records if len(records) == 1 else sorted(records, key=_order):
        state.apply(record)
    return state.result()


def _order(record: KeyRecord) -> tuple[Moment, bool]:
    return record.moment, record.operation != BASE


class _State(Generic[Each]):
    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._result: Fold[Each] = Fold()
        self._decoded: dict[str, Any] | None = None
        self._base: Moment | None = None

    def apply(self, record: Each) -> None:
        if record.operation == BASE:
            # Everything before is in it already, and whatever could not be applied is made good by it.
            self._base = record.moment
            self._put(record, record.document)
            self._result.is_changed = False
        elif self._base is not None and record.moment <= self._base:
            return
        elif record.operation == "delete":
            self._delete(record)
        elif (document := record.document) is not None:
            self._put(record, document)
        else:
            self._apply_update(record)

    def result(self) -> Fold[Each]:
        if self._decoded is not None:
            self._result.document = self._spelling.encode(self._decoded)
        return self._result

    def _put(self, record: Each, document: bytes | None) -> None:
        self._result = Fold(record, document, is_changed=True)
        self._decoded = None

    def _delete(self, record: Each) -> None:
        newest = self._result.newest
        if newest is not None and is_moved(newest, record):
            return
        self._put(record, None)
        self._result.is_deleted = True

    def _apply_update(self, record: Each) -> None:
        result = self._result
        update = record.update
        if self._decoded is None and result.document is None:
            result.unknown.append((record, BASE_UNKNOWN))
            return
        if update is None:
            result.unknown.append((record, DELTA_MISSING))
            return
        if self._decoded is None:
            assert result.document is not None
            self._decoded = self._spelling.decode(result.document)
        apply_update(self._decoded, self._spelling.decode(update))
        result.newest, result.is_changed = record, True


def is_superseded(known: KeyRecord, by: KeyRecord) -> bool:
    """Whether the newer of two records of a document is the second one."""
    if is_moved(known, by):
        return by.operation != "delete"
    return by.moment >= known.moment


def is_moved(one: KeyRecord, other: KeyRecord) -> bool:
    """Whether two records are the two halves of a change of a document's shard key.

    It is deleted under the old key and inserted under the new one, at one cluster time and, across shards, with tokens
    in any order. Before its collection was sharded a document had no shard key.
    """
    if one.moment[0] != other.moment[0] or (one.operation == "delete") == (other.operation == "delete"):
        return False
    old, new = _shard_key(one.document_key), _shard_key(other.document_key)
    return bool(old) and bool(new) and old != new


def _shard_key(document_key: bytes | None) -> dict[bytes, bytes]:
    """Give the values beside the `_id` as KeyStrings, which are equal where the server finds the values equal."""
    if document_key is None:
        return {}
    return {
        name: keystring.encode_value(kind, document_key[start:end], [])
        for kind, name, start, end in raw.elements(document_key)
        if name != b"_id"
    }
