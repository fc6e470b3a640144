"""Which documents a sink has, in a small database file: by the same fold as for topics, record by record."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bson

from tailrace.capture.document_key import BY_ID
from tailrace.capture.record import Record
from tailrace.capture.recovery.document_table import DocumentTable, Told
from tailrace.errors import StoreUnavailable
from tailrace.event import ChangeEvent
from tailrace.fold import END_OPERATIONS, End, Ends, Moment, id_of, moment_of

_ENDS = """
create table if not exists ends (
    time integer, token text, operation text, namespace text, renamed_to text, primary key (time, token, namespace)
) without rowid
"""
_REMEMBERED_SECONDS = 3600
"""For how long deletes and ends of collections are remembered. What is delivered again after a crash comes with the
deletes and ends that belong to it, so that older ones are never missed."""
_RECORDS_BETWEEN_CLEANINGS = 500_000
_OLDER = "(time, token) < (?, ?)"


class LocalKeys:
    """The documentKeys of the documents that a sink has. Survives its process.

    Records that are delivered again after a crash, or out of order by shards that do not wait for each other, end in
    the same set: a document's newest record counts, and ends of collections count for what came before them only.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._opened: tuple[DocumentTable, Ends] | None = None
        self._newest = 0
        self._until_cleaning = 0

    def apply(self, records: Iterable[Record]) -> None:
        """Take records into account, in one step."""
        with self._disk_errors():
            table, ends = self._open()
            with table.connection:
                for record in records:
                    self._apply(table, ends, record)
                self._clean(table, ends)
                table.flush()

    def all(self) -> Iterator[tuple[str, bytes]]:
        """Give every key, namespace by namespace, as of now: by a connection of its own, while others are applied."""
        if not self._file.exists():
            return
        with self._disk_errors():
            self._open()  # a file of an older version is brought up to date
            reading = sqlite3.connect(self._file, check_same_thread=False)
        try:
            query = "select namespace, document_key from documents where operation != 'delete' order by namespace, id"
            yield from reading.execute(query)
        finally:
            reading.close()

    def _apply(self, table: DocumentTable, ends: Ends, record: Record) -> None:
        event = ChangeEvent(record.event)
        moment = moment_of(event.token_time, event.token_text.decode())
        self._newest = max(self._newest, event.token_time)
        self._until_cleaning -= 1
        if record.operation in END_OPERATIONS:
            self._end(table, ends, End(moment, record.operation, record.namespace, event.new_namespace))
            return
        key = event.document_key
        namespace = ends.place_of(record.namespace, moment)
        if key is not None and namespace is not None:
            told = Told(moment, record.operation, key)
            table.take((namespace, id_of(bson.decode(key))), told, with_documents=False)

    def _end(self, table: DocumentTable, ends: Ends, end: End) -> None:
        """Let the documents that were there before an end leave, or move to where they are now."""
        if not ends.add(end) or ends.repeats(end):
            return
        table.flush()
        execute, at = table.connection.execute, end.moment
        execute("insert or ignore into ends values (?, ?, ?, ?, ?)", (*at, end.operation, end.namespace, end.to))
        if end.operation == "dropDatabase":
            inside = f"{end.namespace}."
            execute(f"delete from documents where substr(namespace, 1, ?) = ? and {_OLDER}", (len(inside), inside, *at))
            return
        if end.to is not None:
            execute(f"delete from documents where namespace = ? and {_OLDER}", (end.to, *at))
            now = ends.place_of(end.to, at)
            if now is not None:
                moved = f"update or ignore documents set namespace = ? where namespace = ? and {_OLDER}"
                execute(moved, (now, end.namespace, *at))
        execute(f"delete from documents where namespace = ? and {_OLDER}", (end.namespace, *at))

    def _clean(self, table: DocumentTable, ends: Ends) -> None:
        """Forget, now and then, deletes and ends that no record can come before any more."""
        if self._until_cleaning > 0:
            return
        self._until_cleaning = _RECORDS_BETWEEN_CLEANINGS
        oldest: Moment = max(0, self._newest - (_REMEMBERED_SECONDS << 32)), ""
        ends.forget_before(oldest)
        table.flush()
        table.connection.execute(f"delete from documents where operation = 'delete' and {_OLDER}", oldest)
        table.connection.execute(f"delete from ends where {_OLDER}", oldest)

    def _open(self) -> tuple[DocumentTable, Ends]:
        """Open the file for writing; the first write makes it."""
        if self._opened is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._file, check_same_thread=False)
            for statement in ("pragma journal_mode = wal", "pragma synchronous = normal", _ENDS):
                connection.execute(statement)
            table = DocumentTable(connection)
            with connection:
                _take_over_bare_keys(table)
            rows = connection.execute("select time, token, operation, namespace, renamed_to from ends")
            self._opened = table, Ends(End((time, token), *rest) for time, token, *rest in rows)
        return self._opened

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise StoreUnavailable(f"cannot keep captured keys in {self._file}: {error}") from error


def _take_over_bare_keys(table: DocumentTable) -> None:
    """Take the keys of a file that had them without their times: everything that is told from now on is newer."""
    found = table.connection.execute("select 1 from sqlite_master where name = 'keys'").fetchone()
    if found is None:
        return
    for namespace, key in table.connection.execute("select namespace, key from keys"):
        id_ = id_of(bson.decode(BY_ID.of(key)))
        table.take((namespace, id_), Told((0, ""), "read", key), with_documents=False)
    table.flush()
    table.connection.execute("drop table keys")
