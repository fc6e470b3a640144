"""Rows of snapshots and recovered deletes are keyed as the server keys its own events, in sharded collections too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
import pytest

from capture_harness import Harness
from tailrace.capture.formats import decoder_of
from tailrace.capture.formats.made_events import BY_ID, KeyFields, key_fields
from tailrace.capture.producer.control import FirstStep
from tailrace.capture.recovery.rebuilt_state import RebuiltState
from tailrace.event import ChangeEvent
from tailrace.fold import moment_of
from tailrace.stand import ShardedCluster

SHARD_KEYS: dict[str, dict[str, object]] = {
    "nested": {"a.b": 1},
    "several": {"z": 1, "a.c": 1},
    "around_id": {"x": 1, "_id": 1, "y": 1},
    "hashed": {"h": "hashed"},
    "id_alone": {"_id": "hashed"},
}
DOCUMENTS: list[dict[str, Any]] = [
    {"_id": 1, "a": {"b": 1, "c": 2}, "x": 3, "y": 4, "h": 5, "z": 6},
    {"_id": 2},
    {"_id": 3, "a": 5, "x": None},
    {"_id": 4, "a": {"b": {"q": 1}, "c": None}, "y": 1, "h": None},
]


def keys(harness: Harness, *operations: str) -> dict[tuple[str, Any], bytes]:
    """The documentKeys of records, by collection and `_id`."""
    return {
        (event["ns"]["coll"], event["documentKey"]["_id"]): bson.encode(event["documentKey"])
        for event in harness.events()
        if event["operationType"] in operations
    }


def alive(harness: Harness, id_: Any) -> set[str]:
    """The collections in which a document is, to readers that go by `_id` and cluster time."""
    state, decoder = RebuiltState(), decoder_of("bson")
    for record in harness.delivered:
        event = ChangeEvent(record.event)
        if bson.decode(event.document_key or b"")["_id"] == id_:
            moment = moment_of(event.cluster_time, event.token_text.decode())
            state.apply(decoder.read(b"", record.event), moment)
    found = {name.partition(".")[2] for name in state.namespaces() if list(state.keys(name))}
    state.close()
    return found


@pytest.mark.parametrize("version", ["6.0.5", pytest.param("4.2.6", marks=pytest.mark.long)])
def test_rows_and_recovered_deletes_have_the_keys_of_the_servers_own_events(
    start_sharded: Callable[..., ShardedCluster], tmp_path: Path, version: str
) -> None:
    cluster = start_sharded(version, shards=1)
    cluster.create_database("shop")
    for name, shard_key in SHARD_KEYS.items():
        cluster.shard_collection(f"shop.{name}", shard_key)
    client = cluster.shard_client("s0")
    by_stream = Harness(client, tmp_path / "stream", ["shop"])
    by_stream.run_until_idle()
    for name in SHARD_KEYS:
        for document in DOCUMENTS:
            cluster.insert(f"shop.{name}", dict(document), shard="s0")
    by_stream.run_until_idle()
    by_snapshot = Harness(client, tmp_path / "snapshot", ["shop"])
    by_snapshot.run_until_idle()
    assert len(keys(by_stream, "insert")) == len(SHARD_KEYS) * len(DOCUMENTS)
    assert keys(by_snapshot, "read") == keys(by_stream, "insert")

    for name in SHARD_KEYS:
        cluster.delete(f"shop.{name}", dict(DOCUMENTS[0]), shard="s0")
    by_snapshot.delivered.clear()
    by_snapshot.run_until_idle(first_step=FirstStep.RECOVER)
    deleted = {place: key for place, key in keys(by_stream, "insert").items() if place[1] == 1}
    assert keys(by_snapshot, "delete") == deleted
    old, new = DOCUMENTS[3], {**DOCUMENTS[3], "z": 7, "x": 8, "h": 9, "a": {"b": 2}}
    for name in SHARD_KEYS:
        cluster.delete(f"shop.{name}", dict(old), shard="s0")
        cluster.insert(f"shop.{name}", dict(new), shard="s0")

    def time_goes_on(step: str) -> None:
        if step == "rows":
            client.admin.command({"appendOplogNote": 1, "data": {}})

    by_snapshot.run_until_idle(first_step=FirstStep.RECOVER, hook=time_goes_on)
    assert alive(by_snapshot, 4) == set(SHARD_KEYS), "a row is not older than the delete of the old key"
    with cluster.config.client() as config:
        asked = {name: key_fields(client, f"shop.{name}") for name in SHARD_KEYS}
        catalogue = {
            each["_id"]: KeyFields.of_shard_key(list(each["key"])) for each in config.config.collections.find()
        }
    assert {f"shop.{name}": fields for name, fields in asked.items()}.items() <= catalogue.items()
    assert key_fields(client, "shop.elsewhere") == BY_ID
