"""Subscribers to a cluster who ask for the same share what was merged once."""

from __future__ import annotations

import time
from collections.abc import Callable

from cluster.test_idle_shards import keys, subscribe, take, two_shards
from tailrace.cluster import ClusterHub, MergedReading
from tailrace.engine.event import Event
from tailrace.hub import Subscription
from tailrace.stand import ReplicaSet

_PATIENCE = 60


def test_what_is_merged_once_is_shared_and_who_is_too_slow_goes_on_alone(
    start_mongodb: Callable[..., ReplicaSet],
) -> None:
    with two_shards(start_mongodb, 1, channel_bytes=300_000) as (_, hub, writer):
        first, second, slow = (subscribe(hub) for _ in range(3))
        other = subscribe(hub, fullDocument="updateLookup")
        for stream in (first, second, slow):
            _until_joined(hub, stream)
        assert {stream.channel for stream in (first, second, slow)} == {first.channel}
        assert len(hub._merges) == 2

        for number in range(6):
            writer.insert(f"s{number % 2}", f"{number}")
        mine, elements = _events(first, 6)
        theirs, same_elements = _events(second, 6)
        assert all(one is another for one, another in zip(mine, theirs, strict=True))
        assert elements is same_elements
        assert keys(take(other, 6)) == writer.written

        place = second.position.to_document()
        for number in range(6, 26):
            writer.insert(f"s{number % 2}", f"{number}" + "x" * 50_000)
            assert keys(take(first, 1)) == writer.written[-1:]
        assert not slow.channel.has(slow.index)
        assert keys(take(slow, 26)) == writer.written  # from a scan of its own, and back among the others
        _until_joined(hub, slow)
        assert slow.channel is first.channel
        resumed = subscribe(hub, resumeAfter=place)
        assert keys(take(resumed, 20)) == writer.written[6:]
        assert keys(take(second, 20)) == writer.written[6:]
        writer.insert("s1", "last")
        for stream in (first, second, slow, resumed):
            assert keys(take(stream, 1)) == ["last"]
        for stream in (first, second, slow, resumed, other):
            stream.close()
        assert not hub._merges
        assert not hub.subscribers
        assert not hub.hub("s0").channels


def test_a_merged_stream_ends_for_all_who_share_it(start_mongodb: Callable[..., ReplicaSet]) -> None:
    with two_shards(start_mongodb, 1) as (shards, hub, _):
        streams = [subscribe(hub) for _ in range(2)]
        for stream in streams:
            _until_joined(hub, stream)
        with shards["s1"].client() as client:
            client.drop_database("shop")
        for stream in streams:
            types = [event.operation_type for event in _events(stream, 3)[0]]
            assert types == ["drop", "dropDatabase", "invalidate"]
            assert stream.is_closed
        assert not hub._merges


def _until_joined(hub: ClusterHub, stream: Subscription[MergedReading]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while stream.channel is None:
        assert time.monotonic() < deadline
        assert not stream.poll().events
        time.sleep(0.005)


def _events(stream: Subscription[MergedReading], count: int) -> tuple[list[Event], bytes]:
    """Poll once all of so many events have been made."""
    deadline = time.monotonic() + _PATIENCE
    channel = stream.channel
    assert channel is not None
    while channel.end - stream.index < count:
        assert time.monotonic() < deadline
        channel.make_events()
        time.sleep(0.005)
    batch = stream.poll()
    return batch.events, batch.elements
