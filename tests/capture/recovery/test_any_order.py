"""State is a function of the set of records: any interleaving of partitions gives what one step after another gives."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bson
import pytest
from bson import json_util
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collection_lives import STEPS, Deployment, Keys, State, cluster_time
from tailrace.capture.formats import decoder_of, make_format
from tailrace.capture.record import Record
from tailrace.capture.recovery.inventory import captured_keys
from tailrace.capture.recovery.local_inventory import LocalKeys, Times
from tailrace.capture.recovery.rebuilt_state import RebuiltState
from tailrace.event import ChangeEvent
from tailrace.fold import END_OPERATIONS
from topic_messages import message_of

Steps = list[tuple[Any, ...]]
_RENAME = ("rename", 0, 0, True, False)
RENAMED_BACK_IN_A_GAP: Steps = [("insert", 0, 1), _RENAME, ("lose",), _RENAME, ("recover",), _RENAME]
RENAMED_BACK_IN_A_SHORT_GAP: Steps = [("insert", 0, 1), _RENAME, ("lose", False), _RENAME, ("recover",), _RENAME]
"""The second and the fourth step are one rename of one collection, told twice: by two renames, not by two shards."""


def records_of(events: Sequence[bytes], format_name: str) -> list[Record]:
    return list(make_format(format_name, fields=["v"]).batch(events))


@contextmanager
def rebuilt(records: Sequence[Record], format_name: str, limit: int | None = None) -> Iterator[RebuiltState]:
    decoder = decoder_of(format_name)
    state = RebuiltState(with_documents=decoder.has_documents, limit=limit)
    try:
        state.read(lambda: map(message_of, records), decoder)
        yield state
    finally:
        state.close()


def documents(state: RebuiltState) -> State:
    found = {name: [json_util.loads(each.document or b"null") for _, each in state.documents(name)]
             for name in state.namespaces()}  # fmt: skip
    return {name: {each["_id"]: each for each in some} for name, some in found.items()}


def captured(events: list[bytes]) -> Keys:
    with rebuilt(records_of(events, "flat"), "flat") as state:
        yield from [(name, key) for name in state.namespaces() for _, key in state.keys(name)]


def ids(state: State) -> set[tuple[str, int]]:
    return {(name, key) for name, some in state.items() for key in some}


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 2**32), st.sampled_from(["json", "bson"]))
@example(RENAMED_BACK_IN_A_GAP, 0, "json")
@example(RENAMED_BACK_IN_A_SHORT_GAP, 0, "json")
def test_any_interleaving_gives_what_happened(steps: Steps, seed: int, format_name: str) -> None:
    world, chance = Deployment(captured).run(steps), random.Random(seed)
    records = records_of(world.events, format_name)
    records += chance.choices(records, k=len(records) // 3) if records else []
    chance.shuffle(records)
    with rebuilt(records, format_name) as state:
        assert documents(state) == world.state()


@settings(max_examples=75, deadline=None)
@given(STEPS, st.integers(0, 2**32))
def test_the_state_of_any_time_is_that_of_its_records(steps: Steps, seed: int) -> None:
    world, chance = Deployment(captured).run(steps), random.Random(seed)
    time, expected = chance.choice(sorted(world.past.items()))
    records = records_of(world.events, "json")
    chance.shuffle(records)
    with rebuilt(records, "json", limit=cluster_time(time)) as state:
        assert documents(state) == expected


@settings(max_examples=75, deadline=None)
@given(STEPS, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=4))
def test_keys_in_a_file_are_the_same_however_often_records_are_delivered_again(
    steps: Steps, crashes: list[tuple[int, int]]
) -> None:
    """A crash is a place in the stream, and how far before it the next process begins."""
    world = Deployment(captured).run(steps)
    records = records_of(world.events, "bson")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "keys.sqlite"
        begin = 0
        for end, back in [*crashes, (len(records), 0)]:
            LocalKeys(file).apply(records[begin : max(begin, end)])
            begin = max(0, min(max(begin, end), len(records)) - back)
        LocalKeys(file).apply(records[begin:])
        found = {(name, bson.decode(key)["_id"]) for name, key in LocalKeys(file).all()}
        assert found == ids(world.state())


@settings(max_examples=50, deadline=None)
@given(STEPS)
def test_a_recovery_sends_the_deletes_of_the_gap_and_no_others(steps: Steps) -> None:
    """Whatever ended before: only a document that the records have, and the source has not, is deleted."""
    world = Deployment(captured).run(steps)
    before, world.deletes = ids(world.state()), 0
    world.lose()
    gone = sorted(before)[::2]
    for name, key in gone:
        world.delete(sorted(world.collections).index(name), key)
    world.recover()
    assert world.deletes == len(gone)
    with rebuilt(records_of(world.events, "canonical"), "canonical") as state:
        assert {name: len(some) for name, some in world.state().items()} == {
            name: len(list(state.keys(name))) for name in state.namespaces()
        }


def by_order_of_arrival(events: Sequence[bytes]) -> set[tuple[str, int]]:
    """Give what a consumer has that takes the last record of a document, and forgets those of a dropped collection."""
    found: set[tuple[str, int]] = set()
    for event in map(ChangeEvent, events):
        name = event.namespace
        if event.document_key is None:
            found = {(each, key) for each, key in found if name not in (each, each.partition(".")[0])}
        else:
            place = name, bson.decode(event.document_key)["_id"]
            (found.discard if event.operation_type == "delete" else found.add)(place)
    return found


def known_keys(inventory: str, folder: Path, events: Sequence[bytes], lost: Times) -> set[tuple[str, int]]:
    records = records_of(events, "bson")
    if inventory == "topic":
        keys = captured_keys(lambda: map(message_of, records), decoder_of("bson"), lambda _: True, lost=lost)
    else:
        kept = LocalKeys(folder / "keys.sqlite")
        kept.apply(records)
        keys = kept.all(lost=lost)
    return {(name, bson.decode(key)["_id"]) for name, key in keys}


INTERRUPTED: Steps = [("insert", 0, 1), ("insert", 0, 2), ("delete", 0, 1), ("drop", 0)]
"""Both documents come again behind what removed them when this is delivered, then its first half, and no more."""


@pytest.mark.parametrize("inventory", ["topic", "file"])
@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
@example(INTERRUPTED, 0, 2, 99)
@example(INTERRUPTED[:3], 0, 1, 99)
@example(INTERRUPTED, 2, 2, 2)
def test_what_came_back_by_an_interrupted_redelivery_is_known(
    inventory: str, steps: Steps, committed: int, again: int, sent: int
) -> None:
    """Events are delivered, some of them ahead of the position; those come again, not all, and then history is lost."""
    told = ("insert", "replace", "delete", "drop", "drop_database")
    events = Deployment(captured).run([step for step in steps if step[0] in told]).events
    committed, sent = sorted((min(committed, len(events)), min(sent, len(events))))
    delivered = [*events[:sent], *events[committed : min(sent, committed + again)]]
    begin = ChangeEvent(events[committed - 1]).cluster_time if committed else 0
    with TemporaryDirectory() as folder:
        found = known_keys(inventory, Path(folder), delivered, (begin, (1 << 63) - 1))
    assert found >= by_order_of_arrival(delivered)
    by_time = by_order_of_arrival(events[:sent])
    assert found >= by_time
    ahead = (ChangeEvent(event) for event in events[max(0, committed - 1) : sent])
    if not any(event.operation_type in ("delete", *END_OPERATIONS) for event in ahead):
        assert found == by_time, "a delete that nobody needs"


def test_the_file_of_an_older_version_keeps_its_keys(tmp_path: Path) -> None:
    import sqlite3

    file = tmp_path / "keys.sqlite"
    old = sqlite3.connect(file)
    old.execute("create table keys (namespace text, key blob, primary key (namespace, key)) without rowid")
    old.execute("insert into keys values ('a.x', ?)", (bson.encode({"s": 5, "_id": 1}),))
    old.commit()
    old.close()
    assert list(LocalKeys(file).all()) == [("a.x", bson.encode({"s": 5, "_id": 1}))]
    world = Deployment(captured)
    world.collections["a.x"] = {1: {"_id": 1}}
    world.drop(0)
    LocalKeys(file).apply(records_of(world.events, "bson"))
    assert list(LocalKeys(file).all()) == []


@pytest.mark.parametrize("format_name", ["json", "bson", "flat"])
def test_a_rename_says_where_to_in_every_format(format_name: str) -> None:
    world = Deployment(captured).run([("insert", 0, 1), ("rename", 0, 1, False, False)])
    with rebuilt(records_of(world.events, format_name), format_name) as state:
        assert state.namespaces() == ["b.x"]
