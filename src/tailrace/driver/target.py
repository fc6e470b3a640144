"""What can be watched: pymongo's collections, databases and clients, synchronous or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.synchronous.collection import Collection
from pymongo.synchronous.database import Database

from tailrace.driver.commands import Scope
from tailrace.driver.options import WatchOptions

Target: TypeAlias = MongoClient[Any] | Database[Any] | Collection[Any]
AsyncTarget: TypeAlias = AsyncMongoClient[Any] | AsyncDatabase[Any] | AsyncCollection[Any]
ASYNCHRONOUS: Final = (AsyncMongoClient, AsyncDatabase, AsyncCollection)


@dataclass(frozen=True, slots=True)
class Watched:
    """A target, taken apart: what is watched, where commands go, how events are decoded."""

    scope: Scope
    handle: Any
    """A database or collection with the stream's read preference and read concern."""
    client: Any
    codec: CodecOptions[Any]

    @classmethod
    def of(cls, target: Target | AsyncTarget, options: WatchOptions) -> Watched:
        """Describe one of pymongo's objects, with the options' read preference and concern."""
        chosen: dict[str, Any] = {"read_preference": options.read_preference, "read_concern": options.read_concern}
        if isinstance(target, Collection | AsyncCollection):
            scope = Scope.of_collection(target.database.name, target.name)
            return cls(scope, target.with_options(**chosen), target.database.client, target.codec_options)
        if isinstance(target, Database | AsyncDatabase):
            scope = Scope.of_database(target.name)
            return cls(scope, target.with_options(**chosen), target.client, target.codec_options)
        if isinstance(target, MongoClient | AsyncMongoClient):
            handle = target.get_database("admin", **chosen)
            return cls(Scope.of_cluster(), handle, target, target.codec_options)
        raise TypeError(f"a collection, database or client of pymongo can be watched, not {type(target).__name__}")
