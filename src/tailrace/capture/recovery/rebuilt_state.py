"""The state of the documents rebuilt from records, in whatever order these come, on disk and not in memory.

Where a record's document is now depends on the ends of collections (`Ends`), and these may lie in other partitions and
topics than the documents. So when a reading meets an end that was not known, all is read once more with all ends known
from the beginning; topics without one are read once.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from tailrace import raw
from tailrace.capture.formats.stored_records import RecordDecoder, StoredRecord
from tailrace.capture.recovery.document_table import DocumentChange, DocumentTable, Known
from tailrace.fold import END_OPERATIONS, End, Ends, Moment, Spelling, id_of

if TYPE_CHECKING:
    from tailrace.capture.recovery.topic_reader import TopicMessage

_JSON = Spelling(orjson.loads, orjson.dumps)
_LATER = "create table later (namespace text, id blob, primary key (namespace, id)) without rowid"


@dataclass(frozen=True, slots=True)
class Document:
    """A document rebuilt from records."""

    document_key: bytes
    document: bytes | None
    """JSON in the spelling of the format; None when the records do not have the whole document."""


class RebuiltState:
    """The documents after a set of records, as of a cluster time."""

    def __init__(
        self,
        *,
        with_documents: bool = True,
        limit: int | None = None,
        is_followed: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`is_followed` says which collections are captured: what is renamed to another name is gone."""
        self._with_documents = with_documents
        self._limit = limit
        """The cluster time up to which records count; of later ones only their documents are noted."""
        self.ends = Ends(is_followed=is_followed)
        """The ends of collections in the records."""
        self._folder = tempfile.TemporaryDirectory(prefix="tailrace-state-")
        self._open()
        self.newest = 0
        """The greatest cluster time of all records that count."""

    def close(self) -> None:
        """Remove everything from the disk."""
        self._table.connection.close()
        self._folder.cleanup()

    def read(self, messages: Callable[[], Iterable[TopicMessage]], decoder: RecordDecoder) -> None:
        """Take all records into account; `messages` gives the same ones each time it is called."""
        while not self._read_once(messages(), decoder):
            self._table.connection.close()
            self._open()

    def add_ends(self, ends: Iterable[End]) -> bool:
        """Take ends into account that are in no record; when they are new, all records have to be read again."""
        before = len(self.ends)
        for end in ends:
            self.ends.add(end)
        if len(self.ends) == before:
            return False
        self._table.connection.close()
        self._open()
        return True

    def apply(self, record: StoredRecord, moment: Moment) -> None:
        """Take one record of a document into account."""
        if record.document_key is None:
            return
        if self._limit is not None and moment[0] > self._limit:
            address = record.namespace, id_of(record.document_key)
            self._table.connection.execute("insert or ignore into later values (?, ?)", address)
            return
        self.newest = max(self.newest, moment[0])
        namespace = self.ends.location_of(record.namespace, moment)
        if namespace is None:
            return
        change = DocumentChange(moment, record.operation, raw.encode(record.document_key), *self._parts(record))
        address = namespace, id_of(record.document_key)
        self._table.take(address, change, with_documents=self._with_documents)

    def get(self, namespace: str, id_: bytes) -> Document | None:
        """Give a document; None when there is none, or it was deleted."""
        known = self._table.get((namespace, id_))
        return self._document(namespace, id_, known) if known is not None and known.exists else None

    def namespaces(self) -> list[str]:
        """Give the collections that have documents."""
        return self._table.namespaces()

    def documents(self, namespace: str) -> Iterator[tuple[bytes, Document]]:
        """Give every document of a collection, by `id_of`, in the order of `_id`."""
        for id_, known in self._table.documents(namespace):
            yield id_, self._document(namespace, id_, known)

    def keys(self, namespace: str) -> Iterator[tuple[bytes, bytes]]:
        """Give `id_of` and documentKey of every document of a collection."""
        for id_, known in self._table.documents(namespace):
            yield id_, known.document_key

    def keys_without(self, namespace: str, there: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Give those of `keys` whose `id_of` is not among others, which may be too many for the memory."""
        connection = self._table.connection
        connection.execute("create temp table there (id blob primary key) without rowid")
        try:
            connection.executemany("insert or ignore into there values (?)", ((id_,) for id_ in there))
            for id_, key in self.keys(namespace):
                if connection.execute("select 1 from there where id = ?", (id_,)).fetchone() is None:
                    yield id_, key
        finally:
            connection.execute("drop table there")

    def is_later(self, namespace: str, id_: bytes) -> bool:
        """Whether there are records of a document that are later than the time."""
        query = "select 1 from later where namespace = ? and id = ?"
        return self._table.connection.execute(query, (namespace, id_)).fetchone() is not None

    def _open(self) -> None:
        file = Path(self._folder.name) / "state.sqlite"
        file.unlink(missing_ok=True)
        connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        for statement in (
            "pragma journal_mode = off",
            "pragma synchronous = off",
            "pragma temp_store = file",
            _LATER,
            "begin",
        ):
            connection.execute(statement)
        self._table = DocumentTable(connection)

    def _read_once(self, messages: Iterable[TopicMessage], decoder: RecordDecoder) -> bool:
        """Read to the end; gives whether all ends were known from the beginning."""
        knew_all = True
        for message in messages:
            is_end = message.operation in END_OPERATIONS
            if message.value is None or not (knew_all or is_end):
                continue  # a tombstone follows the delete, which said the same
            if is_end:
                knew_all &= not self._add_end(message, decoder)
            else:
                self.apply(decoder.read(message.key, message.value), message.moment)
        return knew_all

    def _add_end(self, message: TopicMessage, decoder: RecordDecoder) -> bool:
        assert message.value is not None
        if self._limit is not None and message.moment[0] > self._limit:
            return False
        self.newest = max(self.newest, message.moment[0])
        record = decoder.read(message.key, message.value)
        to = message.to if record.to is None else record.to
        return self.ends.add(End(message.moment, record.operation, record.namespace, to))

    def _parts(self, record: StoredRecord) -> tuple[bytes | None, bytes | None]:
        if not self._with_documents:
            return None, None
        if record.document is not None:
            return orjson.dumps(record.document), None
        return None, None if record.update is None else orjson.dumps(record.update)

    def _document(self, namespace: str, id_: bytes, known: Known) -> Document:
        return Document(known.document_key, self._table.document((namespace, id_), known, _JSON))
