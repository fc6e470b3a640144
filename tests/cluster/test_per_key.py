"""Order per key: no shard waits for another, and the tokens carry where each of them stands."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import bson
import pytest

from cluster.test_idle_shards import Document, keys, take, two_shards
from tailrace.cluster import ClusterHub, MergedReading, Order
from tailrace.engine import parse_command
from tailrace.errors import InvalidResumeToken
from tailrace.hub import Subscription
from tailrace.stand import ReplicaSet
from tailrace.token.shard_positions import read_positions


def subscribe(hub: ClusterHub, token: Document | None = None) -> Subscription[MergedReading]:
    options = {} if token is None else {"resumeAfter": token}
    command = {"aggregate": 1, "pipeline": [{"$changeStream": options}], "cursor": {}}
    spec = parse_command(command, "shop", hub.dialect)
    return hub.subscribe(spec, latest=hub.latest(), now=datetime.now(UTC), positions=read_positions(token))


def by_shard(written: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for key in written:
        found[key[:2]].append(key)
    return found


def test_a_silent_shard_holds_nobody_back_and_every_token_resumes(start_mongodb: Callable[..., ReplicaSet]) -> None:
    with two_shards(start_mongodb, 1, Order.PER_KEY) as (shards, hub, writer):
        stream = subscribe(hub)
        for number in range(6):
            writer.insert("s0", f"s0 {number}")
            writer.insert("s1", f"s1 {number}")
        events = take(stream, 12)
        shards["s1"].nodes[0].pause()
        for number in range(6, 9):
            writer.insert("s0", f"s0 {number}")
        events += take(stream, 3)
        behind = bson.decode(stream.poll().token)
        shards["s1"].nodes[0].resume()
        for number in range(6, 9):
            writer.insert("s1", f"s1 {number}")
        events += take(stream, 3)
        assert by_shard(keys(events)) == by_shard(writer.written)

        for index, event in enumerate(events[:-1]):
            resumed = subscribe(hub, event["_id"])
            rest = take(resumed, len(events) - index - 1)
            assert by_shard(keys(rest)) == by_shard(keys(events[index + 1 :]))
            resumed.close()
        again = subscribe(hub, behind)
        assert keys(take(again, 3)) == ["s1 6", "s1 7", "s1 8"]
        time.sleep(0.1)
        assert not again.poll().events

        first = next(event for event in events if event["documentKey"]["_id"] == "s0 0")
        with shards["s0"].client() as client, client.shop.watch(resume_after=first["_id"]) as plain:
            assert next(plain)["documentKey"]["_id"] == "s0 1"  # a server leaves the positions aside


@pytest.mark.parametrize("token", [None, {}, {"_data": "82"}, {"_data": "82", "shards": 1}])
def test_a_token_without_positions_has_none(token: Any) -> None:
    assert read_positions(token) == {}


def test_positions_that_are_no_tokens_are_refused() -> None:
    with pytest.raises(InvalidResumeToken):
        read_positions({"_data": "82", "shards": {"s0": {"_data": "garbage"}}})
