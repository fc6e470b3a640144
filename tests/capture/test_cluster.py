"""A producer on the oplogs of a real sharded cluster: all shards, in order, from where each of them stood."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_harness import Harness
from sharded_counters import KEYS, Counters
from tailrace.capture.positions import Position, open_store
from tailrace.capture.recovery.gaps import GapLedger
from tailrace.capture.source.source import ClusterAccess
from tailrace.errors import GapOpen, SettingsError
from tailrace.stand import ShardedCluster
from tailrace.token import ResumeToken
from waiting import wait_until

SHARDS = ("s0", "s1", "s2")


@pytest.fixture
def make_harness(
    shared_sharded: ShardedCluster, counters: Counters, tmp_path: Path
) -> Iterator[Callable[..., Harness]]:
    """Make harnesses over one store, each with an order and options of its own."""
    with shared_sharded.config.client() as client:

        def make(order: str = "strict", shards: Mapping[str, str] | None = None, **options: Any) -> Harness:
            access = ClusterAccess(shared_sharded.config.uri, shards or {}, order)
            given = {"options": {"start": "now"}, **options}
            return Harness(client, tmp_path, [counters.namespace], "oplog", cluster=access, **given)

        yield make


def numbers_by_key(events: list[dict[str, Any]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for event in events:
        found[event["documentKey"]["_id"]].append(event["fullDocument"]["n"])
    return found


def stored(folder: Path) -> Position:
    with open_store(f"file:{folder / 'positions'}") as store:
        position = store.load("orders")
    assert position is not None
    return position


def test_every_run_goes_on_where_each_shard_stood_whatever_the_order(
    make_harness: Callable[..., Harness], counters: Counters, tmp_path: Path
) -> None:
    make_harness().run_until_idle()
    counters.insert()
    delivered: list[dict[str, Any]] = []
    for order in ("strict", "per-key", "per-key", "strict"):
        counters.count(30)
        harness = make_harness(order)
        harness.run_until_idle()
        events = harness.events()
        if order == "strict":
            keys = [ResumeToken.parse(event["_id"]).key for event in events]
            assert keys == sorted(keys)
        delivered += events
        position = stored(tmp_path)
        assert sorted(position.shards) == list(SHARDS)
        least = min(ResumeToken.parse(token) for token in position.shards.values())
        assert ResumeToken.parse(position.token or b"") <= least
    assert {key: numbers[-1] for key, numbers in numbers_by_key(delivered).items()} == dict(enumerate(counters.counts))
    for numbers in numbers_by_key(delivered).values():
        assert numbers == list(range(len(numbers)))  # each once, in order
    assert all("shards" not in event["_id"] for event in delivered)


def test_a_quiet_shard_moves_along(make_harness: Callable[..., Harness], counters: Counters, tmp_path: Path) -> None:
    make_harness().run_until_idle()
    counters.insert()
    make_harness("per-key").run_until_idle()
    before = stored(tmp_path)
    counters.count(10, keys=range(KEYS // 3))
    harness = make_harness("per-key")
    harness.run_until_idle()
    assert len(harness.events()) == 10
    after = stored(tmp_path)
    for shard in SHARDS:
        assert ResumeToken.parse(after.shards[shard]) > ResumeToken.parse(before.shards[shard])
    assert after.cluster_time > before.cluster_time


def test_a_position_without_shards_goes_on_behind_its_token_on_all(
    make_harness: Callable[..., Harness], counters: Counters, tmp_path: Path
) -> None:
    make_harness().run_until_idle()
    counters.insert()
    first = make_harness()
    first.run_until_idle()
    seen = first.events()[7]
    for order in ("strict", "per-key"):
        with open_store(f"file:{tmp_path / 'positions'}") as store:
            lease = store.acquire("orders", "test")
            token = ResumeToken.parse(seen["_id"])
            store.save(Position(token.to_bson(), token.cluster_time), lease, reason="test")
            store.release(lease)
        again = make_harness(order)
        again.run_until_idle()
        found = sorted(event["documentKey"]["_id"] for event in again.events())
        assert found == sorted(event["documentKey"]["_id"] for event in first.events()[8:])


def test_a_shard_that_stopped_is_no_end_and_holds_back_nothing_that_it_need_not(
    shared_sharded: ShardedCluster, make_harness: Callable[..., Harness], counters: Counters
) -> None:
    make_harness().run_until_idle()
    counters.insert()
    harness = make_harness("per-key")
    with harness.running() as producer:
        wait_until(lambda: len(harness.delivered) == KEYS, "the inserts")
        shared_sharded.shards["s2"].nodes[0].pause()
        try:
            counters.count(10, keys=range(2 * KEYS // 3))
            wait_until(lambda: len(harness.delivered) == KEYS + 10, "events of the other shards")
        finally:
            shared_sharded.shards["s2"].nodes[0].resume()
        counters.count(10)
        wait_until(lambda: len(harness.delivered) == KEYS + 20, "all events")
        assert producer.status.errors() == {}


def test_documents_that_move_to_another_shard_keep_their_order(
    shared_sharded: ShardedCluster, make_harness: Callable[..., Harness], counters: Counters
) -> None:
    make_harness().run_until_idle()
    counters.insert()
    harness = make_harness()
    with harness.running():
        counters.count(20)
        shared_sharded.move_range(counters.namespace, "s2", min={"_id": 2}, max={"_id": 4})
        counters.count(40, keys=range(6))
        wait_until(lambda: len(harness.delivered) == KEYS + 60, "every event")
    for key, numbers in numbers_by_key(harness.events()).items():
        assert numbers == list(range(counters.counts[key] + 1))


def put_a_shard_that_is_gone_into_the_position(folder: Path) -> None:
    before = stored(folder)
    with open_store(f"file:{folder / 'positions'}") as store:
        lease = store.acquire("orders", "test")
        gone = {**before.shards, "s9": before.shards["s0"]}
        store.save(replace(before, shards=gone), lease, reason="test")
        store.release(lease)


def test_a_shard_that_left_while_nothing_ran_is_a_gap(make_harness: Callable[..., Harness], tmp_path: Path) -> None:
    make_harness().run_until_idle()
    put_a_shard_that_is_gone_into_the_position(tmp_path)
    with pytest.raises(GapOpen):
        make_harness(options={"start": "now", "recover": False}).run_until_idle()
    with open_store(f"file:{tmp_path / 'positions'}") as store:
        gap = GapLedger(store.cells, "orders").open_gap()
    assert gap is not None
    assert gap.reason == "mongodb-286"


def test_shards_may_be_named_and_none_may_be_left_out(
    shared_sharded: ShardedCluster, make_harness: Callable[..., Harness], counters: Counters, tmp_path: Path
) -> None:
    named = {name: shard.uri for name, shard in shared_sharded.shards.items()}
    make_harness(shards=named).run_until_idle()
    counters.insert()
    harness = make_harness(shards=named)
    harness.run_until_idle()
    assert len(harness.events()) == KEYS
    del named["s1"]
    with pytest.raises(SettingsError, match="has shard s1"):
        make_harness(shards=named).run_until_idle()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"options": {"start": "snapshot"}}, "through a mongos"),
        ({"selection": {"heartbeat": "tailrace.heartbeats"}}, "heartbeats"),
    ],
)
def test_what_config_servers_cannot_do_is_refused(
    make_harness: Callable[..., Harness], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        make_harness(**given).run_until_idle()
