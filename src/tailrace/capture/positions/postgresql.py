"""Positions in PostgreSQL: one row per name, and one per change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from tailrace.capture.positions.observed import digest_of
from tailrace.errors import SettingsError, StoreUnavailable
from tailrace.settings import masked

_Result = TypeVar("_Result")
_SECONDS = 10
_TABLES = (
    "CREATE TABLE IF NOT EXISTS tailrace_positions (name text PRIMARY KEY, cell text NOT NULL)",
    "ALTER TABLE tailrace_positions ADD COLUMN IF NOT EXISTS written_at timestamptz,"
    " ADD COLUMN IF NOT EXISTS written_digest text",
    "CREATE TABLE IF NOT EXISTS tailrace_position_changes"
    " (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, change text NOT NULL)",
    "CREATE INDEX IF NOT EXISTS tailrace_position_changes_by_name ON tailrace_position_changes (name, id)",
)
_ARE_THERE = (
    "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('tailrace_positions')"
    " AND attname = 'written_digest' AND NOT attisdropped"
)
_REFUSALS = ("authentication failed", "no pg_hba.conf entry", "does not exist", "permission denied")
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(7416243)"  # two that create the same table at once collide


class PostgresCells:
    """Rows of two tables, which are made when they are missing; columns that version 0.1.0 did not have are added.

    A cell and its line of the trail are written in one transaction. A connection that a restarted server closed is
    opened again, once per call; a swap that was done although its answer never came is recognised by its caller.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._turn = threading.Lock()

    def read(self, name: str) -> bytes | None:
        """Give the cell, or None when there is none."""
        rows = self._run(lambda cursor: _fetch(cursor, "SELECT cell FROM tailrace_positions WHERE name = %s", name))
        return rows[0][0].encode() if rows else None

    def swap(self, name: str, expected: bytes | None, cell: bytes, change: bytes | None) -> bool:
        """Replace the row if it still holds `expected`."""

        def replace(cursor: psycopg.Cursor[tuple[Any, ...]]) -> bool:
            if expected is None:
                cursor.execute(
                    "INSERT INTO tailrace_positions (name, cell, written_digest, written_at)"
                    " VALUES (%s, %s, %s, clock_timestamp()) ON CONFLICT DO NOTHING",
                    (name, cell.decode(), digest_of(cell)),
                )
            else:
                cursor.execute(
                    "UPDATE tailrace_positions SET cell = %s, written_digest = %s, written_at = clock_timestamp()"
                    " WHERE name = %s AND cell = %s",
                    (cell.decode(), digest_of(cell), name, expected.decode()),
                )
            if cursor.rowcount == 0:
                return False
            if change is not None:
                cursor.execute(
                    "INSERT INTO tailrace_position_changes (name, change) VALUES (%s, %s)", (name, change.decode())
                )
            return True

        return self._run(replace)

    def seconds_since_written(self, name: str, cell: bytes) -> float | None:
        """Give the age by the clock of the server."""
        query = (
            "SELECT extract(epoch FROM clock_timestamp() - written_at)::float8 FROM tailrace_positions"
            " WHERE name = %s AND cell = %s AND written_digest = %s"
        )
        rows = self._run(lambda cursor: _fetch(cursor, query, name, cell.decode(), digest_of(cell)))
        return rows[0][0] if rows else None

    def changes(self, name: str, limit: int) -> list[bytes]:
        """Give the last changes, the newest first."""
        query = "SELECT change FROM tailrace_position_changes WHERE name = %s ORDER BY id DESC LIMIT %s"
        return [row[0].encode() for row in self._run(lambda cursor: _fetch(cursor, query, name, limit))]

    def names(self) -> list[str]:
        """Give every name that has a cell."""
        return [row[0] for row in self._run(lambda cursor: _fetch(cursor, "SELECT name FROM tailrace_positions"))]

    def close(self) -> None:
        """Close the connection."""
        if self._connection:
            self._connection.close()
            self._connection = None

    def _run(self, work: Callable[[psycopg.Cursor[tuple[Any, ...]]], _Result]) -> _Result:
        """Do the work in one transaction, with a fresh connection if the old one is dead."""
        with self._turn:
            return self._run_now(work)

    def _run_now(self, work: Callable[[psycopg.Cursor[tuple[Any, ...]]], _Result]) -> _Result:
        reused = self._connection is not None
        try:
            connection = self._connected()
            with connection.transaction(), connection.cursor() as cursor:
                return work(cursor)
        except psycopg.OperationalError as error:
            self.close()
            if reused:
                return self._run_now(work)
            if _is_for_a_person(error):
                raise SettingsError(
                    f"PostgreSQL at {masked(self._url)} refuses: {str(error).strip()}",
                    hint="Check the role, the password and the database in capture.position_store.",
                ) from error
            raise StoreUnavailable(
                f"PostgreSQL at {masked(self._url)} does not answer: {str(error).strip()}"
            ) from error

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            options = f"-c statement_timeout={_SECONDS * 1000} -c application_name=tailrace"
            connection = psycopg.connect(
                self._url, connect_timeout=_SECONDS, options=options, tcp_user_timeout=_SECONDS * 1000, autocommit=True
            )
            _make_tables(connection)
            self._connection = connection
        return self._connection


def _is_for_a_person(error: psycopg.OperationalError) -> bool:
    """Whether trying again changes nothing: a wrong role, password or database.

    Of a refused connection the library gives no code, only the words of the server.
    """
    text = str(error)
    return "FATAL:" in text and any(words in text for words in _REFUSALS)


def _make_tables(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Make what is missing; whoever only uses tables that are there needs no right to make any."""
    with connection.transaction():
        found = connection.execute(_ARE_THERE).fetchone()
        if found is None or not found[0]:
            connection.execute(_ONE_AT_A_TIME)
            for statement in _TABLES:
                connection.execute(statement)


def _fetch(cursor: psycopg.Cursor[tuple[Any, ...]], query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    cursor.execute(query.encode(), parameters)
    return cursor.fetchall()
