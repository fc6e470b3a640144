"""Oplogs made by hand, for tests of one behaviour at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import bson
from bson import Binary, Int64
from bson.timestamp import Timestamp

from tailrace.engine import Dialect, EngineStream, open_stream, parse_command
from tailrace.engine.images import ImageStore
from tailrace.engine.recording import RecordedOplog, RecordedShard
from tailrace.oplog.entry import OplogEntry

UUID = Binary(bytes(range(16)), 4)
OTHER_UUID = Binary(bytes(range(16, 32)), 4)
SESSION = {"id": Binary(b"s" * 16, 4), "uid": Binary(b"", 0)}


def entry(i: int, op: str, ns: str, o: Mapping[str, Any], **fields: Any) -> bytes:
    """Make one entry at second 100, increment `i`."""
    document = {
        "op": op,
        "ns": ns,
        "ui": UUID,
        "o": o,
        "ts": Timestamp(100, i),
        "t": Int64(1),
        "v": Int64(2),
        "wall": bson.datetime.datetime(2024, 1, 1),
        **fields,
    }
    return bson.encode({name: value for name, value in document.items() if value is not None})


def insert(i: int, _id: Any, ns: str = "shop.orders", **fields: Any) -> bytes:
    return entry(i, "i", ns, {"_id": _id}, o2={"_id": _id}, **fields)


def command(i: int, database: str, o: Mapping[str, Any], **fields: Any) -> bytes:
    return entry(i, "c", f"{database}.$cmd", o, **fields)


def transaction(i: int, operations: list[Mapping[str, Any]], *, previous: int = 0, **command: Any) -> bytes:
    """Make an `applyOps` entry of a transaction; `previous` is the increment of the one before it."""
    before = {"ts": Timestamp(100, previous) if previous else Timestamp(0, 0), "t": Int64(1 if previous else -1)}
    return entry(
        i,
        "c",
        "admin.$cmd",
        {"applyOps": operations, **command},
        ui=None,
        lsid=SESSION,
        txnNumber=Int64(7),
        prevOpTime=before,
    )


def operation(_id: Any, ns: str = "shop.orders") -> dict[str, Any]:
    return {"op": "i", "ns": ns, "ui": UUID, "o": {"_id": _id}, "o2": {"_id": _id}}


def shard_of(*entries: bytes) -> RecordedShard:
    return RecordedShard(list(entries), [OplogEntry(one).time for one in entries])


def open_small(
    *entries: bytes,
    pipeline: list[Mapping[str, Any]] | None = None,
    database: str = "shop",
    collection: str | None = "orders",
    version: str = "6.0.5",
    images: ImageStore | None = None,
    command_fields: Mapping[str, Any] | None = None,
    **options: Any,
) -> EngineStream:
    """Open a stream over these entries, from the first one unless an option says otherwise."""
    if not {"resumeAfter", "startAfter", "startAtOperationTime"} & options.keys():
        options["startAtOperationTime"] = Timestamp(100, 0)
    stages = [{"$changeStream": options}, *(pipeline or [])]
    aggregate = {"aggregate": collection or 1, "pipeline": stages, "cursor": {}, **(command_fields or {})}
    dialect = Dialect.nearest(version)
    spec = parse_command(aggregate, database, dialect)
    oplog = RecordedOplog(shard_of(*entries))
    return open_stream(spec, oplog, dialect, latest=oplog.visible, images=images)


def events_of(stream: EngineStream) -> list[dict[str, Any]]:
    """Read all events, decoded."""
    return [bson.decode(event.raw) for event in stream.next_batch()]


def types_of(stream: EngineStream) -> list[str]:
    return [event.operation_type for event in stream.next_batch()]
