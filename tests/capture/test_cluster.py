"""A producer on the oplogs of a real sharded cluster: all shards, in order, from where each of them stood."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from capture_harness import Harness, wait_until
from sharded_counters import KEYS, Counters
from tailrace.capture.positions import Position, open_store
from tailrace.capture.source import ClusterAccess
from tailrace.errors import SettingsError
from tailrace.stand import ShardedCluster
from tailrace.token import ResumeToken

SHARDS = ("s0", "s1", "s2")


@pytest.fixture
def make_harness(
    shared_sharded: ShardedCluster, counters: Counters, tmp_path: Path
) -> Iterator[Callable[..., Harness]]:
    """Make harnesses over one store, each with an order and options of its own."""
    with shared_sharded.config.client() as client:

        def make(order: str = "strict", **options: Any) -> Harness:
            access = ClusterAccess(shared_sharded.config.uri, order=order)
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
