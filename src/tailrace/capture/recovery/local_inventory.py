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
        self._opened: sqlite3.Connection | None = None

    def apply(self, changes: Iterable[tuple[str, bytes, bool]]) -> None:
        """Add keys and remove others (namespace, key, whether it is gone), in one step; the last of a key counts."""
        last = {(namespace, key): gone for namespace, key, gone in changes}
        with self._disk_errors(), self._table() as table:
            table.executemany("insert or ignore into keys values (?, ?)", (at for at in last if not last[at]))
            table.executemany("delete from keys where namespace = ? and key = ?", (at for at in last if last[at]))

    def all(self) -> Iterator[tuple[str, bytes]]:
        """Give every key, namespace by namespace, as of now: by a connection of its own, while others are applied."""
        if not self._file.exists():
            return
        with self._disk_errors():
            reading = sqlite3.connect(self._file, check_same_thread=False)
        try:
            yield from reading.execute("select namespace, key from keys order by namespace, key")
        finally:
            reading.close()

    def _table(self) -> sqlite3.Connection:
        """Open the file for writing; the first write makes it."""
        if self._opened is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            table = sqlite3.connect(self._file, check_same_thread=False)
            table.execute("pragma journal_mode = wal")
            table.execute("pragma synchronous = normal")
            table.execute(_TABLE)
            table.commit()
            self._opened = table
        return self._opened

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise StoreUnavailable(f"cannot keep captured keys in {self._file}: {error}") from error
