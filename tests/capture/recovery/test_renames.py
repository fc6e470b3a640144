"""Renames into and out of what is captured, `$out`, and renames while a snapshot is under way: on real servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import json_util
from pymongo.database import Database

from capture_harness import Harness
from tailrace.capture.formats import decoder_of, make_format
from tailrace.capture.producer.control import FirstStep
from tailrace.capture.recovery.inventory import LocalInventory
from tailrace.capture.recovery.rebuilt_state import RebuiltState
from tailrace.capture.source.namespaces import Namespaces
from topic_messages import message_of

State = dict[str, dict[Any, Any]]


def harness(database: Database[Any], folder: Path, *names: str, kind: str = "change-stream") -> Harness:
    chosen = Namespaces.parse([f"{database.name}.{name}" if name else database.name for name in names])
    spelled = [*chosen.collections, *chosen.databases]
    inventory = LocalInventory(folder / "keys.sqlite", chosen.contains_name)
    made = Harness(database.client, folder, spelled, kind, format=make_format("json"), inventory=inventory)
    made.options["chunk_bytes"] = 1
    made.options["snapshot_workers"] = 1
    return made


def told(capture: Harness) -> State:
    """Give the documents by collection, as the records tell them."""
    decoder = decoder_of("json")
    state = RebuiltState(is_followed=Namespaces.parse(capture.namespaces).contains_name)
    try:
        state.read(lambda: map(message_of, capture.delivered), decoder)
        return {
            name: {
                key["_id"]: key for _, each in state.documents(name) for key in [json_util.loads(each.document or b"")]
            }
            for name in state.namespaces()
        }
    finally:
        state.close()


def there(database: Database[Any], *names: str) -> State:
    found = {f"{database.name}.{name}": {each["_id"]: each for each in database[name].find()} for name in names}
    return {name: documents for name, documents in found.items() if documents}


def keys(state: State) -> set[tuple[str, Any]]:
    return {(name, key) for name, documents in state.items() for key in documents}


def kept_keys(capture: Harness) -> set[tuple[str, Any]]:
    assert capture.inventory is not None
    known = capture.inventory.keys()
    return {(name, bson.decode(key)["_id"]) for name, key in known}


@pytest.mark.parametrize("kind", ["change-stream", "oplog"])
def test_out_and_renames_over_a_captured_collection(database: Database[Any], tmp_path: Path, kind: str) -> None:
    database.seed.insert_many([{"_id": key, "v": "out"} for key in range(5)])
    database.target.insert_many([{"_id": key, "v": "old"} for key in range(3, 9)])
    database.left.insert_many([{"_id": key} for key in range(3)])
    capture = harness(database, tmp_path, "target", "left", kind=kind)
    capture.run_until_idle()
    database.seed.aggregate([{"$out": "target"}])
    database.target.delete_one({"_id": 1})
    capture.run_until_idle()
    assert told(capture) == there(database, "target", "left")
    # Away and back: what happened to it meanwhile is told by nobody.
    database.left.rename("elsewhere")
    database.elsewhere.delete_one({"_id": 0})
    database.elsewhere.insert_one({"_id": 9})
    database.elsewhere.rename("left")
    database.seed.rename("target", dropTarget=True)
    capture.run_until_idle()
    assert told(capture) == there(database, "target", "left")
    assert kept_keys(capture) == keys(there(database, "target", "left"))


@pytest.mark.parametrize("kind", ["change-stream", "oplog"])
@pytest.mark.mongodb("4.2.6", "6.0.5")
def test_the_servers_own_collections_are_not_captured(database: Database[Any], tmp_path: Path, kind: str) -> None:
    """`$out` and convertToCapped fill collections of their own and rename them; their documents are not all told."""
    capture = harness(database, tmp_path, "", kind=kind)
    capture.run_until_idle()
    database.seed.insert_many([{"_id": key} for key in range(5)])
    database.seed.aggregate([{"$out": "target"}])
    database.command("convertToCapped", "seed", size=100_000)
    database.seed.insert_one({"_id": 5})
    capture.run_until_idle()
    assert told(capture) == there(database, "seed", "target")
    assert {record.namespace.split(".")[1] for record in capture.delivered if record.operation != "rename"} == {
        "seed",
        "target",
    }


def at_first(point: str, do: Callable[[], Any]) -> Callable[[str], None]:
    done: list[str] = []

    def hook(name: str) -> None:
        if name == point and not done:
            done.append(name)
            do()

    return hook


@pytest.mark.parametrize("point", ["opened", "rows", "before-chunk-done"])
def test_a_rename_while_the_collection_is_still_to_be_read(database: Database[Any], tmp_path: Path, point: str) -> None:
    database.first.insert_many([{"_id": key} for key in range(500)])
    database.second.insert_many([{"_id": key, "v": 0} for key in range(500)])
    capture = harness(database, tmp_path, "first", "second", "third", "fourth")

    def rename() -> None:
        database.second.rename("third")
        database.third.update_one({"_id": 0}, {"$set": {"v": 1}})
        database.third.rename("fourth")

    capture.producer(hook=at_first(point, rename), stop_when_idle=True).run()
    capture.run_until_idle()  # what happened after the start of the first
    assert told(capture) == there(database, "first", "fourth")


def test_a_rename_before_the_deletes_of_a_gap_were_looked_for(database: Database[Any], tmp_path: Path) -> None:
    """Every row was read, but keys would be looked for under a name that is no more: all of them gone, none found."""
    database.first.insert_many([{"_id": key} for key in range(20)])
    capture = harness(database, tmp_path, "first", "second")
    capture.run_until_idle()
    database.first.delete_many({"_id": {"$lt": 5}})

    def rename(_: str = "") -> None:
        database.first.rename("second")

    hook = at_first("after-chunk-done", rename)
    capture.producer(hook=hook, stop_when_idle=True, first_step=FirstStep.RECOVER).run()
    capture.run_until_idle()
    assert told(capture) == there(database, "second")
    assert kept_keys(capture) == keys(there(database, "second"))


def test_a_rename_out_of_what_is_captured_while_it_is_still_to_be_read(database: Database[Any], tmp_path: Path) -> None:
    database.first.insert_many([{"_id": key} for key in range(500)])
    database.second.insert_many([{"_id": key} for key in range(500)])
    capture = harness(database, tmp_path, "first", "second")
    capture.producer(hook=at_first("rows", lambda: database.second.rename("x")), stop_when_idle=True).run()
    capture.run_until_idle()
    assert told(capture) == there(database, "first")


@pytest.mark.parametrize("kind", ["change-stream", "oplog"])
@pytest.mark.mongodb("4.2.6", "6.0.5")
def test_a_rename_that_is_undone_in_a_gap_and_made_again(database: Database[Any], tmp_path: Path, kind: str) -> None:
    """The second telling is not that of another shard, although nothing between the two was seen, minutes ago."""
    database.one.insert_many([{"_id": key} for key in range(6)])
    database.other.insert_one({"_id": 1})
    capture = harness(database, tmp_path, "one", "two", "other", kind=kind)
    capture.run_until_idle()
    database.one.rename("two")
    capture.run_until_idle()
    database.two.delete_one({"_id": 0})
    database.two.rename("one")
    database.two.insert_one({"_id": 1, "v": "another collection"})
    capture.run_until_idle(first_step=FirstStep.RECOVER)
    assert told(capture) == there(database, "one", "two", "other")
    database.one.delete_one({"_id": 2})
    database.one.rename("two", dropTarget=True)
    database.two.insert_one({"_id": 9})
    capture.run_until_idle()
    assert told(capture) == there(database, "two", "other")
    assert kept_keys(capture) == keys(there(database, "two", "other"))
    recovered = [record for record in capture.delivered if ("recovered", b"true") in record.headers]
    assert [record.operation for record in recovered] == ["delete", "rename"]
