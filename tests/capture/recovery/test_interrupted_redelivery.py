"""A redelivery that ends before it comes to the drop or delete it began before, and then history is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.database import Database

from capture_harness import Harness
from tailrace.capture.formats import decoder_of
from tailrace.capture.producer.control import FirstStep
from tailrace.capture.record import Record
from tailrace.capture.recovery.inventory import KeyInventory, captured_keys
from tailrace.capture.recovery.local_inventory import NO_TIMES, Times, Unseen, nothing_unseen
from topic_messages import message_of


class Killed(BaseException):
    """Ends a process between two steps."""


class Delivered(list[Record]):
    """What a sink has taken; it may end in the middle of a batch."""

    room: float = inf
    """How many records more it takes before it ends."""

    def extend(self, records: Iterable[Record]) -> None:
        for record in records:
            if not self.room:
                raise Killed
            self.append(record)
            self.room -= 1


class ReadBack(KeyInventory):
    """The inventory of topics, over what a sink in memory holds."""

    description = "the sink"

    def __init__(self, delivered: list[Record]) -> None:
        self._delivered = delivered

    def keys(self, unseen: Unseen = nothing_unseen, lost: Times = NO_TIMES) -> Iterator[tuple[str, bytes]]:
        records = list(self._delivered)
        return captured_keys(lambda: map(message_of, records), decoder_of("bson"), lambda _: True, unseen, lost)


def by_order_of_arrival(records: list[Record]) -> dict[tuple[str, Any], Any]:
    found: dict[tuple[str, Any], Any] = {}
    for record in records:
        event = bson.decode(record.event)
        if event["operationType"] == "drop":
            found = {place: document for place, document in found.items() if place[0] != record.namespace}
        elif event["operationType"] == "delete":
            found.pop((record.namespace, event["documentKey"]["_id"]), None)
        else:
            found[record.namespace, event["documentKey"]["_id"]] = event["fullDocument"]
    return found


@pytest.mark.parametrize("inventory", ["read back", "file"])
def test_a_consumer_that_goes_by_the_order_of_arrival_keeps_no_ghosts(
    database: Database[Any], tmp_path: Path, inventory: str
) -> None:
    names = dropped, thinned = [f"{database.name}.{name}" for name in ("dropped", "thinned")]
    delivered = Delivered()
    capture = Harness(database.client, tmp_path, names, delivered=delivered)
    if inventory == "read back":
        capture.inventory = ReadBack(delivered)
    database.dropped.insert_one({"_id": 1})
    database.thinned.insert_one({"_id": 1})
    capture.run_until_idle()
    database.dropped.insert_one({"_id": 2})
    database.thinned.insert_one({"_id": 2})
    database.thinned.delete_one({"_id": 2})
    database.dropped.drop()
    shutil.copytree(tmp_path / "positions", tmp_path / "before")
    capture.run_until_idle()
    there = {(thinned, document["_id"]): document for document in database.thinned.find()}
    assert by_order_of_arrival(delivered) == there
    # The position of all that was not saved, as if the process had died, and the next one dies too.
    shutil.rmtree(tmp_path / "positions")
    shutil.move(tmp_path / "before", tmp_path / "positions")
    delivered.room = 2
    with pytest.raises(Killed):
        capture.run_until_idle()
    assert set(by_order_of_arrival(delivered)) == {*there, (dropped, 2), (thinned, 2)}
    delivered.room = inf
    capture.run_until_idle(first_step=FirstStep.RECOVER)
    assert by_order_of_arrival(delivered) == there
    recovered = [record for record in delivered if ("recovered", b"true") in record.headers]
    assert {record.operation for record in recovered} == {"delete"}
    assert len(recovered) == 3, "one for each document that was removed behind the position"
