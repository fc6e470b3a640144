"""Positions in MongoDB: one document per name, and one per change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pymongo
from pymongo import MongoClient
from pymongo.errors import ConfigurationError, DuplicateKeyError, InvalidURI, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from tailrace.capture.positions.observed import digest_of
from tailrace.errors import SettingsError, StoreUnavailable
from tailrace.settings import masked

_SECONDS = 10
_DEFAULT_DATABASE = "tailrace"


class MongoCells:
    """Documents of two collections, read and written with majority: an election takes nothing back.

    A line for the trail is written into the cell's own document, in the one update that replaces the cell, and copied
    to the trail afterwards; whoever finds a line that was not copied copies it. A transaction would do
    the same in one step, but that of a killed writer keeps the document locked for a minute.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._client: MongoClient[dict[str, Any]] = MongoClient(url, serverSelectionTimeoutMS=_SECONDS * 1000)
            database = self._client.get_default_database(
                _DEFAULT_DATABASE, write_concern=WriteConcern("majority"), read_concern=ReadConcern("majority")
            )
        except (InvalidURI, ConfigurationError, ValueError) as error:
            raise SettingsError(f"{masked(url)} is not a MongoDB URI: {masked(str(error))}") from None
        self._cells = database["positions"]
        self._changes = database["position_changes"]
        self._changes_indexed = False

    def read(self, name: str) -> bytes | None:
        """Give the cell, or None when there is none."""
        with self._answering():
            found = self._cells.find_one({"_id": name})
        return found["cell"].encode() if found else None

    def swap(self, name: str, expected: bytes | None, cell: bytes, change: bytes | None) -> bool:
        """Replace the document if it still holds `expected`."""
        with self._answering():
            if change is None:
                return self._replace(name, expected, {"cell": cell.decode()})
            number = self._copy_note(name) + 1
            note = {"_id": {"name": name, "number": number}, "change": change.decode()}
            replaced = self._replace(name, expected, {"cell": cell.decode(), "note": note})
            if replaced:
                self._copy_note(name)
            return replaced

    def seconds_since_written(self, name: str, cell: bytes) -> float | None:
        """Give the age by the clock of the primary."""
        query = {"_id": name, "cell": cell.decode(), "written.digest": digest_of(cell)}
        with self._answering():
            found = self._cells.find_one(query, {"written.at": 1})
            if found is None:
                return None
            now: datetime = self._client.admin.command("isMaster")["localTime"]
        written: datetime = found["written"]["at"]
        return (now - written).total_seconds()

    def changes(self, name: str, limit: int) -> list[bytes]:
        """Give the last changes, the newest first."""
        with self._answering():
            self._copy_note(name)
            found = self._changes.find({"_id.name": name}).sort("_id.number", pymongo.DESCENDING).limit(limit)
            return [line["change"].encode() for line in found]

    def names(self) -> list[str]:
        """Give every name that has a cell."""
        with self._answering():
            return [found["_id"] for found in self._cells.find({}, {"_id": 1})]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _replace(self, name: str, expected: bytes | None, fields: dict[str, Any]) -> bool:
        fields = {**fields, "written.digest": digest_of(fields["cell"].encode())}
        update = {"$set": fields, "$currentDate": {"written.at": True}}
        if expected is None:
            try:
                self._cells.update_one({"_id": name, "cell": {"$exists": False}}, update, upsert=True)
            except DuplicateKeyError:
                return False
            return True
        return bool(self._cells.update_one({"_id": name, "cell": expected.decode()}, update).matched_count)

    def _copy_note(self, name: str) -> int:
        """Copy the line that the last change left in the cell's document, and give its number; 0 if there is none."""
        found = self._cells.find_one({"_id": name}, {"note": 1})
        if not found or "note" not in found:
            return 0
        if not self._changes_indexed:
            self._changes.create_index([("_id.name", 1), ("_id.number", -1)])
            self._changes_indexed = True
        note = found["note"]
        self._changes.replace_one({"_id": note["_id"]}, note, upsert=True)
        return int(note["_id"]["number"])

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            with pymongo.timeout(_SECONDS):
                yield
        except PyMongoError as error:
            raise StoreUnavailable(
                f"MongoDB at {masked(self._url)} cannot keep positions: {masked(str(error))}"
            ) from error
