"""The state of the documents as a topic tells it, built up record by record, on disk and not in memory."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import bson
import orjson

from tailrace import raw
from tailrace.capture.formats.stored_records import StoredRecord
from tailrace.capture.formats.update_description import apply_update
from tailrace.token import keystring

_TABLE = """
create table state (
    namespace text, id blob, document_key blob, version integer, document blob, primary key (namespace, id)
) without rowid
"""
_CACHED = 50_000
_ENDS_OF_A_COLLECTION = ("drop", "rename")


@dataclass(frozen=True, slots=True)
class Known:
    """A document as the records tell it."""

    document_key: bytes
    version: int
    """The greatest cluster time of its records."""
    document: bytes | None
    """JSON in the spelling of the format; None when the records do not tell the whole document."""


class RebuiltState:
    """Applies records in their order; of two records of a document the one with the greater cluster time wins."""

    def __init__(self, *, with_documents: bool = True) -> None:
        self._with_documents = with_documents
        self._folder = tempfile.TemporaryDirectory(prefix="tailrace-state-")
        self._table = sqlite3.connect(
            f"{self._folder.name}/state.sqlite", isolation_level=None, check_same_thread=False
        )
        for statement in ("pragma journal_mode = off", "pragma synchronous = off", _TABLE, "begin"):
            self._table.execute(statement)
        self._changed: dict[tuple[str, bytes], Known | None] = {}
        self.newest = 0
        """The greatest cluster time of all records."""

    def close(self) -> None:
        """Remove everything from the disk."""
        self._table.close()
        self._folder.cleanup()

    def apply(self, record: StoredRecord, cluster_time: int) -> None:
        """Take one record more into account."""
        self.newest = max(self.newest, cluster_time)
        if record.document_key is None:
            self._apply_to_collection(record)
            return
        place = record.namespace, id_of(record.document_key)
        known = self._get(place)
        if known is not None and known.version > cluster_time:
            return
        if record.operation == "delete":
            if known is not None and _lives_elsewhere(known, record.document_key):
                return
            # The version is kept, so that an older record that comes later does not bring the document back.
            self._put(place, Known(b"", cluster_time, None))
            return
        key = bson.encode(record.document_key)
        self._put(place, Known(key, cluster_time, self._document(record, known)))

    def get(self, namespace: str, id_: bytes) -> Known | None:
        """Give what is known of a document that exists; None when there is none, or it was deleted."""
        known = self._get((namespace, id_))
        return known if known is not None and known.document_key else None

    def version(self, namespace: str, id_: bytes) -> int:
        """Give the greatest cluster time of a document's records, deletes included; 0 when there are none."""
        known = self._get((namespace, id_))
        return known.version if known else 0

    def namespaces(self) -> list[str]:
        """Give the collections that have documents."""
        self._flush()
        found = self._table.execute("select distinct namespace from state where document_key != x'' order by namespace")
        return [namespace for (namespace,) in found]

    def documents(self, namespace: str) -> Iterator[tuple[bytes, Known]]:
        """Give every document of a collection, by `id_of`, in the order of `_id`."""
        self._flush()
        query = "select id, document_key, version, document from state where namespace = ? and document_key != x''"
        for id_, key, version, document in self._table.execute(query, (namespace,)):
            yield id_, Known(key, version, document)

    def _document(self, record: StoredRecord, known: Known | None) -> bytes | None:
        if not self._with_documents:
            return None
        if record.document is not None:
            return orjson.dumps(record.document)
        if record.update is None or known is None or known.document is None:
            return None
        document: dict[str, Any] = orjson.loads(known.document)
        apply_update(document, record.update)
        return orjson.dumps(document)

    def _apply_to_collection(self, record: StoredRecord) -> None:
        """A collection or database that is gone takes its documents with it."""
        self._flush()
        if record.operation in _ENDS_OF_A_COLLECTION:
            self._table.execute("delete from state where namespace = ?", (record.namespace,))
        elif record.operation == "dropDatabase":
            inside = f"{record.namespace}."
            self._table.execute("delete from state where substr(namespace, 1, ?) = ?", (len(inside), inside))

    def _get(self, place: tuple[str, bytes]) -> Known | None:
        if place in self._changed:
            return self._changed[place]
        query = "select document_key, version, document from state where namespace = ? and id = ?"
        row = self._table.execute(query, place).fetchone()
        return None if row is None else Known(*row)

    def _put(self, place: tuple[str, bytes], known: Known) -> None:
        self._changed[place] = known
        if len(self._changed) >= _CACHED:
            self._flush()

    def _flush(self) -> None:
        rows = (
            (*place, known.document_key, known.version, known.document)
            for place, known in self._changed.items()
            if known is not None
        )
        self._table.executemany("insert or replace into state values (?, ?, ?, ?, ?)", rows)
        self._changed.clear()


def _lives_elsewhere(known: Known, deleted: Mapping[str, Any]) -> bool:
    """Whether the document is there under another shard key than the deleted one.

    A document whose shard key changes is deleted under the old key and inserted under the new one, at one cluster time
    and in two partitions, so that the delete may be read last. Before its collection was sharded it had no shard key.
    """
    there = bson.decode(known.document_key) if known.document_key else {}
    old, new = ({name: key[name] for name in key if name != "_id"} for key in (deleted, there))
    return bool(old) and bool(new) and old != new


def id_of(document_key: Mapping[str, Any]) -> bytes:
    """Give bytes that are equal for equal `_id`s, whatever the types of their numbers."""
    return id_of_value(raw.from_python(document_key["_id"]))


def id_of_value(value: raw.Value) -> bytes:
    """Give the same for an `_id` in BSON."""
    return keystring.encode([value])[0]
