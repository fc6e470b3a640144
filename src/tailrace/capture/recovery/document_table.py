"""What is known of every document, by its newest record: a table on disk, so that memory does not grow with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailrace.fold import BASE, Moment, Spelling, fold, is_superseded

_TABLES = (
    """
    create table if not exists documents (
        namespace text, id blob, time integer, token text, operation text, document_key blob,
        image_time integer, image_token text, image_key blob, image blob, has_deltas integer,
        primary key (namespace, id)
    ) without rowid
    """,
    """
    create table if not exists deltas (
        namespace text, id blob, time integer, token text, description blob, primary key (namespace, id, time, token)
    ) without rowid
    """,
)
_COLUMNS = "time, token, operation, document_key, image_time, image_token, image_key, image, has_deltas"
_CACHED = 50_000
DocumentAddress = tuple[str, bytes]
"""A namespace, and `id_of` of a document in it."""


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """The state of a document in one record."""

    moment: Moment
    operation: str
    document_key: bytes | None
    document: bytes | None = None
    """The whole document after it, in the spelling of its format."""
    update: bytes | None = None
    """What an update changed, in the same spelling."""


@dataclass(frozen=True, slots=True)
class Known:
    """A document by all records so far: the newest of them, and the newest that settles what the document is."""

    moment: Moment
    operation: str
    document_key: bytes
    image_moment: Moment | None = None
    image_key: bytes | None = None
    image: bytes | None = None
    """The document at that moment; None when it was deleted then."""
    has_deltas: bool = False
    """Whether updates are kept that may be newer than the image."""

    @property
    def exists(self) -> bool:
        """Whether the document is there after the newest record."""
        return self.operation != "delete"

    @property
    def newest_image(self) -> DocumentChange | None:
        """The newest record that says what the whole document is, or that it is gone."""
        if self.image_moment is None:
            return None
        return DocumentChange(self.image_moment, "delete" if self.image is None else BASE, self.image_key, self.image)


class DocumentTable:
    """Documents by place. Changes are written to the disk many at once; whoever owns the connection commits."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        for statement in _TABLES:
            connection.execute(statement)
        self._changed: dict[DocumentAddress, Known] = {}
        self._deltas: list[tuple[str, bytes, int, str, bytes]] = []

    def take(self, address: DocumentAddress, change: DocumentChange, *, with_documents: bool = True) -> None:
        """Take one record more into account; the same records in any other order leave the same."""
        known = self.get(address)
        key = change.document_key or b""
        if known is None:
            changed = Known(change.moment, change.operation, key)
        elif is_superseded(known, change):
            changed = replace(known, moment=change.moment, operation=change.operation, document_key=key)
        else:
            changed = known
        if with_documents:
            changed = self._with_image(address, changed, change)
        if changed is not known:
            self._put(address, changed)

    def get(self, address: DocumentAddress) -> Known | None:
        """Give what is known of a document; None when there was no record of it."""
        if address in self._changed:
            return self._changed[address]
        query = f"select {_COLUMNS} from documents where namespace = ? and id = ?"
        row = self.connection.execute(query, address).fetchone()
        return None if row is None else _known(row)

    def document(self, address: DocumentAddress, known: Known, spelling: Spelling) -> bytes | None:
        """Give the whole document: the image, with the updates since; None when the records do not have it."""
        base = known.newest_image
        if base is None or known.image is None or not known.has_deltas:
            return known.image
        self.flush()
        query = "select time, token, description from deltas where namespace = ? and id = ?"
        deltas = [
            DocumentChange((time, token), "update", None, None, update)
            for time, token, update in self._rows(query, address)
        ]
        return fold([base, *deltas], spelling).document

    def namespaces(self) -> list[str]:
        """Give the collections that have documents."""
        found = self._rows("select distinct namespace from documents where operation != 'delete' order by namespace")
        return [namespace for (namespace,) in found]

    def documents(self, namespace: str) -> Iterator[tuple[bytes, Known]]:
        """Give every document that a collection has, in the order of `_id`."""
        query = f"select id, {_COLUMNS} from documents where namespace = ? and operation != 'delete' order by id"
        for id_, *row in self._rows(query, (namespace,)):
            yield id_, _known(row)

    def flush(self) -> None:
        """Hand what changed to the database."""
        rows = ((*address, *_row(known)) for address, known in self._changed.items())
        self.connection.executemany("insert or replace into documents values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self.connection.executemany("insert or ignore into deltas values (?, ?, ?, ?, ?)", self._deltas)
        self._changed.clear()
        self._deltas.clear()

    def _with_image(self, address: DocumentAddress, known: Known, change: DocumentChange) -> Known:
        image = known.newest_image
        if change.document is not None or change.operation == "delete":
            if image is not None and not is_superseded(image, change):
                return known
            return replace(known, image_moment=change.moment, image_key=change.document_key, image=change.document)
        if change.update is None or (image is not None and change.moment < image.moment):
            return known
        self._deltas.append((*address, *change.moment, change.update))
        return replace(known, has_deltas=True)

    def _put(self, address: DocumentAddress, known: Known) -> None:
        self._changed[address] = known
        if len(self._changed) + len(self._deltas) >= _CACHED:
            self.flush()

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        self.flush()
        return self.connection.execute(query, values)


def _row(known: Known) -> tuple[object, ...]:
    image = *(known.image_moment or (None, None)), known.image_key, known.image
    return (*known.moment, known.operation, known.document_key, *image, known.has_deltas)


def _known(row: Sequence[Any]) -> Known:
    time, token, operation, key, image_time, image_token, image_key, image, has_deltas = row
    moment = None if image_time is None else (image_time, image_token)
    return Known((time, token), operation, key, moment, image_key, image, bool(has_deltas))
