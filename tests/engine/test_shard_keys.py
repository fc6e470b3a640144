"""The keys of inserted documents where the server does not log them: in sharded clusters before 6.0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import WriteConcern

from tailrace.engine.live import watch_oplog
from tailrace.engine.transform import document_key
from tailrace.stand import ShardedCluster

RAW: CodecOptions[RawBSONDocument] = CodecOptions(RawBSONDocument)
COLLECTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "by_user": ({"user": 1}, {"_id": 1, "user": 7, "more": True}),
    "by_two": ({"user": 1, "day": 1}, {"day": "mon", "_id": 2, "user": 7.5}),
    "by_path": ({"who.name": 1, "who.age": 1}, {"_id": 3, "who": {"age": 5, "name": "x", "of": 1}}),
    "by_id": ({"_id": 1}, {"user": 1, "_id": {"a": 1}}),
    "by_id_first": ({"_id": 1, "user": 1}, {"user": 1, "_id": 4}),
}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ([], {"_id": 1}),
        (["b"], {"b": 2, "_id": 1}),
        (["_id", "b"], {"_id": 1, "b": 2}),
        (["n.y", "b", "n.x"], {"n.y": 4, "b": 2, "n.x": 3, "_id": 1}),
        (["missing", "b.c"], {"_id": 1}),
    ],
)
def test_a_key_has_the_fields_of_the_shard_key_and_the_id(key: list[str], expected: dict[str, Any]) -> None:
    document = bson.encode({"_id": 1, "b": 2, "n": {"x": 3, "y": 4}})
    nested = bson.encode({"": expected})  # at the top level pymongo would write `_id` first
    assert document_key(document, [path.encode() for path in key]) == nested[6:-1]


def test_inserts_into_sharded_collections_are_those_of_the_server(
    start_sharded: Callable[..., ShardedCluster],
) -> None:
    """Also those of a collection that is not sharded."""
    cluster = start_sharded("4.2.6", shards=1, parameters={"writePeriodicNoops": False})
    cluster.create_database("shop")
    client = cluster.shard_client("s0")
    start = cluster.run_on("s0", {"ping": 1})["operationTime"]
    for name, (key, document) in COLLECTIONS.items():
        cluster.shard_collection(f"shop.{name}", key)
        cluster.insert(f"shop.{name}", document)
    plain = client.shop.get_collection("plain", write_concern=WriteConcern("majority"))  # streams show no others
    for number in range(3):
        plain.insert_one({"_id": number, "user": 1})
    stage = {"$changeStream": {"startAtOperationTime": start}}
    command = {"aggregate": 1, "pipeline": [stage], "cursor": {"batchSize": 100}}
    theirs = [event.raw for event in client.shop.command(command, codec_options=RAW)["cursor"]["firstBatch"]]
    with watch_oplog(client.shop, start_at_operation_time=start, max_await_time_ms=100) as stream:
        ours = list(stream.next_batch().events)
        while len(ours) < len(theirs):
            ours += stream.next_batch().events
    assert [bson.decode(event) for event in ours] == [bson.decode(event) for event in theirs]
    assert ours == theirs
    keys = {bson.decode(event)["ns"]["coll"]: bson.decode(event).get("documentKey") for event in ours}
    assert keys["by_path"] == {"who.name": "x", "who.age": 5, "_id": 3}
    assert keys["plain"] == {"_id": 2}
