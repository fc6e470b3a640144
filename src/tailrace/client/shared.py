"""What both ways to run commands on cursors have in common: codecs, the reply to an aggregate, errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import NotPrimaryError, OperationFailure
from pymongo.synchronous.collection import Collection
from pymongo.synchronous.database import Database

from tailrace.client.commands import Reply

Handle: TypeAlias = Database[Any] | Collection[Any]
"""Where a synchronous stream runs its aggregate; carries read preference, read concern and codec options."""
AsyncHandle: TypeAlias = AsyncDatabase[Any] | AsyncCollection[Any]


@contextmanager
def plain_errors() -> Iterator[None]:
    """Decode what a server says of an error: only events stay bytes."""
    try:
        yield
    except OperationFailure as error:
        details = _decoded(error.details)
        raise type(error)(details["errmsg"], error.code, details) from None
    except NotPrimaryError as error:
        details = _decoded(error.details)
        raise NotPrimaryError(details["errmsg"], details) from None


def _decoded(details: Any) -> dict[str, Any]:
    return bson.decode(details.raw) if isinstance(details, RawBSONDocument) else details


def client_of(handle: Any) -> Any:
    """Give the client behind a database or collection."""
    return handle.client if isinstance(handle, Database | AsyncDatabase) else handle.database.client


def raw_codec(handle: Handle | AsyncHandle) -> CodecOptions[Any]:
    """Keep documents as bytes, but the user's type codecs: a pipeline may need them."""
    return handle.codec_options.with_options(document_class=RawBSONDocument)


def opened(handle: Any, answer: Any, max_wire_version: int) -> tuple[Any, dict[str, Any], Reply]:
    """Take the reply to an aggregate apart: the collection for getMore, the cursor, the reply."""
    found = answer["cursor"]
    namespace = found.get("ns", "")
    collection = (
        handle if isinstance(handle, Collection | AsyncCollection) else handle[namespace.partition(".")[2] or "$cmd"]
    )
    token = found.get("postBatchResumeToken")
    reply = Reply(
        found["id"],
        namespace,
        [event.raw for event in found["firstBatch"]],
        None if token is None else token.raw,
        answer.get("operationTime"),
        max_wire_version,
    )
    return collection, {"id": found["id"], "firstBatch": [], "ns": namespace}, reply
