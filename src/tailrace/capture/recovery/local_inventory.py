"""Which documents a sink has, in a small database file: by the same fold as for topics, record by record."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

from tailrace import raw
from tailrace.capture.record import Record
from tailrace.capture.recovery.document_table import DocumentChange, DocumentTable
from tailrace.errors import StoreUnavailable
from tailrace.event import ChangeEvent
from tailrace.fold import END_OPERATIONS, End, Ends, Moment, end_of, id_of_value, moment_of
from tailrace.raw.cluster_time import ClusterTime

Unseen = Callable[[Ends], Iterable[End]]
"""Gives the renames that are missing among the ends of collections in the records."""
Times = tuple[int, int]
"""Cluster times from the first on, and before the second."""
NO_TIMES: Final[Times] = (0, 0)
_ENDS = """
create table if not exists ends (
    time integer, token text, operation text, namespace text, renamed_to text, primary key (time, token, namespace)
) without rowid
"""
_ENDED = """
create table if not exists ended (
    namespace text, id blob, time integer, document_key blob, primary key (namespace, id)
) without rowid
"""
_REMEMBERED_SECONDS = 3600
"""For how long deletes and ends of collections are remembered. What is delivered again after a crash comes with the
deletes and ends that belong to it, so that older ones are never missed."""
_RECORDS_BETWEEN_CLEANINGS = 500_000
_OLDER = "(time, token) < (?, ?)"
_KEYS = (
    """
    select namespace, time, token, document_key from documents
        where operation != 'delete' or (time >= :begin and time < :end) order by namespace, id
    """,
    """
    select namespace, time, '', document_key from ended
        where time >= :begin and time < :end
        and not exists (select 1 from documents where namespace = ended.namespace and id = ended.id)
        order by namespace, id
    """,
)


def nothing_unseen(_: Ends) -> Iterable[End]:
    """Without a gap no rename is missing."""
    return ()


class LocalKeys:
    """The documentKeys of the documents that a sink has. Survives its process.

    Records that are delivered again after a crash, or out of order by shards that do not wait for each other, end in
    the same set: a document's newest record counts, and ends of collections count for what came before them only.
    """

    def __init__(self, file: Path, is_followed: Callable[[str], bool] = lambda _: True) -> None:
        """`is_followed` says which collections are captured: what is renamed to another name is gone."""
        self._file = file
        self._is_followed = is_followed
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

    def all(self, unseen: Unseen = nothing_unseen, lost: Times = NO_TIMES) -> Iterator[tuple[str, bytes]]:
        """Give every key, namespace by namespace, as of now: by a connection of its own, while others are applied.

        Documents are where the renames that `unseen` gives leave them; these are kept when their records come. What was
        removed at the `lost` times is given too.
        """
        if not self._file.exists():
            return
        with self._disk_errors():
            _, known = self._open()  # a file of an older version is brought up to date
            ends = Ends(unseen(known), is_followed=self._is_followed)
            reading = sqlite3.connect(self._file, check_same_thread=False)
        try:
            times = {"begin": lost[0], "end": lost[1]}
            for namespace, time, token, key in chain.from_iterable(reading.execute(query, times) for query in _KEYS):
                address = ends.location_of(namespace, (time, token))
                if address is not None:
                    yield address, key
        finally:
            reading.close()

    def _apply(self, table: DocumentTable, ends: Ends, record: Record) -> None:
        event = ChangeEvent(record.event)
        moment = moment_of(event.token_time, event.token_text.decode())
        self._newest = max(self._newest, event.token_time)
        self._until_cleaning -= 1
        if record.operation in END_OPERATIONS:
            self._end(table, ends, end_of(event))
            return
        key = event.document_key
        namespace = ends.location_of(record.namespace, moment)
        if key is not None and namespace is not None:
            change = DocumentChange(moment, record.operation, key)
            table.take((namespace, _id_of(key)), change, with_documents=False)

    def _end(self, table: DocumentTable, ends: Ends, end: End) -> None:
        """Let the documents that were there before an end leave, or move to where they are now."""
        if not ends.add(end) or ends.repeats(end):
            return
        table.flush()
        execute, at = table.connection.execute, end.moment
        execute("insert or ignore into ends values (?, ?, ?, ?, ?)", (*at, end.operation, end.namespace, end.to))
        if end.operation == "dropDatabase":
            inside = f"{end.namespace}."
            self._remove(table, end, "substr(namespace, 1, ?) = ?", (len(inside), inside))
            return
        if end.to is not None:
            self._remove(table, end, "namespace = ?", (end.to,))
        self._remember(table, end, "namespace = ?", (end.namespace,))
        if end.to is not None and self._is_followed(end.to) and (now := ends.location_of(end.to, at)) is not None:
            moved = f"update or ignore documents set namespace = ? where namespace = ? and {_OLDER}"
            execute(moved, (now, end.namespace, *at))
        execute(f"delete from documents where namespace = ? and {_OLDER}", (end.namespace, *at))

    def _remove(self, table: DocumentTable, end: End, which: str, values: tuple[object, ...]) -> None:
        self._remember(table, end, which, values)
        table.connection.execute(f"delete from documents where {which} and {_OLDER}", (*values, *end.moment))

    def _remember(self, table: DocumentTable, end: End, which: str, values: tuple[object, ...]) -> None:
        """Keep the keys of documents that an end removes from where they are, with the time at which they left."""
        time = "case operation when 'delete' then time else ? end"
        left = f"select namespace, id, {time}, document_key from documents where {which} and {_OLDER}"
        table.connection.execute(f"insert or replace into ended {left}", (end.moment[0], *values, *end.moment))

    def _clean(self, table: DocumentTable, ends: Ends) -> None:
        """Forget, now and then, deletes and ends that no record can come before any more."""
        if self._until_cleaning > 0:
            return
        self._until_cleaning = _RECORDS_BETWEEN_CLEANINGS
        oldest: Moment = max(0, self._newest - ClusterTime.of(_REMEMBERED_SECONDS)), ""
        ends.forget_before(oldest)
        table.flush()
        table.connection.execute(f"delete from documents where operation = 'delete' and {_OLDER}", oldest)
        table.connection.execute(f"delete from ends where {_OLDER}", oldest)
        table.connection.execute("delete from ended where time < ?", oldest[:1])

    def _open(self) -> tuple[DocumentTable, Ends]:
        """Open the file for writing; the first write makes it."""
        if self._opened is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._file, check_same_thread=False)
            for statement in ("pragma journal_mode = wal", "pragma synchronous = normal", _ENDS, _ENDED):
                connection.execute(statement)
            table = DocumentTable(connection)
            with connection:
                _take_over_bare_keys(table)
            rows = connection.execute("select time, token, operation, namespace, renamed_to from ends")
            known = (End((time, token), *rest) for time, token, *rest in rows)
            self._opened = table, Ends(known, is_followed=self._is_followed)
        return self._opened

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise StoreUnavailable(f"cannot keep captured keys in {self._file}: {error}") from error


def _take_over_bare_keys(table: DocumentTable) -> None:
    """Take the keys of a file that had them without their times: every record from now on is newer."""
    found = table.connection.execute("select 1 from sqlite_master where name = 'keys'").fetchone()
    if found is None:
        return
    for namespace, key in table.connection.execute("select namespace, key from keys"):
        table.take((namespace, _id_of(key)), DocumentChange((0, ""), "read", key), with_documents=False)
    table.flush()
    table.connection.execute("drop table keys")


def _id_of(document_key: bytes) -> bytes:
    value = raw.field(document_key, b"_id")
    assert value is not None  # every documentKey has one
    return id_of_value(value)
