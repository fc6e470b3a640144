"""Positions in MongoDB: one document per name, and one per change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import ConfigurationError, DuplicateKeyError, InvalidURI, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from tailrace.errors import SettingsError, StoreUnavailable
from tailrace.settings import masked

_SECONDS = 10
_DEFAULT_DATABASE = "tailrace"


class MongoCells:
    """Documents of two collections, read and written with majority: an election takes nothing back.

    A cell that comes with a line for the trail is written in a transaction, so the server is a replica set, as it is
    wherever there are change streams.
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
        self._is_prepared = False

    def read(self, name: str) -> bytes | None:
        """Give the cell, or None when there is none."""
        with self._answering():
            found = self._cells.find_one({"_id": name})
        return found["cell"].encode() if found else None

    def swap(self, name: str, expected: bytes | None, cell: bytes, change: bytes | None) -> bool:
        """Replace the document if it still holds `expected`."""
        with self._answering():
            try:
                if change is None:
                    return self._replace(name, expected, cell, None)
                self._prepare()
                with self._client.start_session() as session:
                    return session.with_transaction(
                        lambda session: self._replace_noting(name, expected, cell, change, session)
                    )
            except DuplicateKeyError:  # caught out here, because inside it has ended the transaction already
                return False

    def changes(self, name: str, limit: int) -> list[bytes]:
        """Give the last changes, the newest first."""
        with self._answering():
            found = self._changes.find({"name": name}).sort("_id", pymongo.DESCENDING).limit(limit)
            return [line["change"].encode() for line in found]

    def names(self) -> list[str]:
        """Give every name that has a cell."""
        with self._answering():
            return [found["_id"] for found in self._cells.find({}, {"_id": 1})]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _replace_noting(
        self, name: str, expected: bytes | None, cell: bytes, change: bytes, session: ClientSession
    ) -> bool:
        if not self._replace(name, expected, cell, session):
            return False
        self._changes.insert_one({"name": name, "change": change.decode()}, session=session)
        return True

    def _replace(self, name: str, expected: bytes | None, cell: bytes, session: ClientSession | None) -> bool:
        if expected is None:
            self._cells.insert_one({"_id": name, "cell": cell.decode()}, session=session)
            return True
        query = {"_id": name, "cell": expected.decode()}
        return bool(self._cells.update_one(query, {"$set": {"cell": cell.decode()}}, session=session).matched_count)

    def _prepare(self) -> None:
        """Make the collections: before 4.4 a transaction could not."""
        if not self._is_prepared:
            self._changes.create_index([("name", 1), ("_id", -1)])
            self._cells.create_index("_id")
            self._is_prepared = True

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            with pymongo.timeout(_SECONDS):
                yield
        except PyMongoError as error:
            raise StoreUnavailable(
                f"MongoDB at {masked(self._url)} cannot keep positions: {masked(str(error))}"
            ) from error
