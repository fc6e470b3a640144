"""Keys of documents in a small database file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.errors import StoreUnavailable

_TABLE = "create table if not exists keys (namespace text, key blob, primary key (namespace, key)) without rowid"


class LocalKeys:
    """A set of (namespace, documentKey) that survives its process.

    Applying the same changes twice ends in the same set, so that what is delivered again after a crash does no harm.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        self._table = sqlite3.connect(file, check_same_thread=False)
        self._table.execute("pragma journal_mode = wal")
        self._table.execute("pragma synchronous = normal")
        self._table.execute(_TABLE)
        self._table.commit()

    def apply(self, changes: Iterable[tuple[str, bytes, bool]]) -> None:
        """Add keys and remove others (namespace, key, whether it is gone), in one step; the last of a key counts."""
        last = {(namespace, key): gone for namespace, key, gone in changes}
        with self._disk_errors(), self._table:
            self._table.executemany("insert or ignore into keys values (?, ?)", (at for at in last if not last[at]))
            self._table.executemany("delete from keys where namespace = ? and key = ?", (at for at in last if last[at]))

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(f"cannot keep captured keys in {self._file}: {error}") from error

    def all(self) -> Iterator[tuple[str, bytes]]:
        """Give every key, namespace by namespace."""
        yield from self._table.execute("select namespace, key from keys order by namespace, key").fetchall()
