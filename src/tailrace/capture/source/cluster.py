"""A stream over the oplogs of all shards of a cluster: one scan each, merged, with the position of each behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from bson.timestamp import Timestamp
from pymongo import MongoClient

from tailrace.capture.source.oplog import EventChoice
from tailrace.capture.source.source import EVENTS_PER_BATCH, ClusterAccess, UnfinishedBatch
from tailrace.cluster import ClusterHub, Order, config_uri, read_shards
from tailrace.cluster.lookup import ShardedImages
from tailrace.cluster.placement import Placements
from tailrace.cluster.topology import CONFIG
from tailrace.driver import Batch
from tailrace.engine.dialect import Dialect
from tailrace.engine.images import ImageStore
from tailrace.engine.live import LiveImages, Target, read_spec
from tailrace.errors import HistoryLost, ServerUnreachable, SettingsError
from tailrace.event import EventBatch
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token import ResumeToken
from tailrace.token.shard_positions import read_positions, with_positions

_RING_BYTES: Final = 8 * 1024 * 1024
_CHANNEL_BYTES: Final = 16 * 1024 * 1024
"""What is buffered of a shard while the stream is read slowly; beyond that it is scanned again from its position."""
_CATCH_UP_PAUSE: Final = 0.01
_SECONDS_TO_COME: Final = 30.0


def open_cluster(
    client: MongoClient[Any], access: ClusterAccess, make: Callable[..., ClusterHub] = ClusterHub
) -> ClusterHub:
    """Connect to all shards: those that are listed, or those that the config servers know.

    `make` makes the hub; another than the ordinary one where the engine has to prove itself.
    """
    order = Order(access.order)
    found = access.uri if access.shards else config_uri(client, access.uri)
    if found is None:
        raise SettingsError("this is a replica set, and no cluster", hint="Give the URI of a mongos or config server.")
    shards = dict(access.shards) or None
    return make(found, shards=shards, order=order, ring_bytes=_RING_BYTES, channel_bytes=_CHANNEL_BYTES)


def shard_uris(client: MongoClient[Any], access: ClusterAccess) -> dict[str, str]:
    """Give the URIs of all shards by their names."""
    return dict(access.shards) or {shard.name: shard.uri(access.uri) for shard in read_shards(client)}


def cluster_now(
    client: MongoClient[Any], access: ClusterAccess, make: Callable[..., ClusterHub] = ClusterHub
) -> tuple[bytes, Timestamp]:
    """Give a position behind everything that was written before the call, on all shards, and its time."""
    with open_cluster(client, access, make) as hub:
        newest = _newest_position(hub)
        shards = {name: newest for name in hub.shards if name != CONFIG}
    return with_positions(newest.to_bson(), shards), newest.cluster_time


def shard_images(
    name: str, shard: MongoClient[Any], router: MongoClient[Any], connect: Callable[[str], MongoClient[Any]]
) -> ImageStore:
    """Give where the documents of one shard's events are found, which may be on others by now."""
    placements = Placements(router, Dialect.of(shard.server_info()["version"]))
    return ShardedImages(name, LiveImages(shard), placements, connect)


def _newest_position(hub: ClusterHub) -> ResumeToken:
    """Give a position behind everything that was written before the call, and to which every shard has come."""
    latest = hub.latest()
    hub.advance_to(latest)
    deadline = time.monotonic() + _SECONDS_TO_COME
    while hub.reached < latest:
        if time.monotonic() > deadline:
            raise ServerUnreachable(f"not all of the shards {', '.join(hub.shards)} come to the newest time")
        time.sleep(_CATCH_UP_PAUSE)
    return ResumeToken.high_water_mark(ClusterTime(latest).next.timestamp)


def shard_left(name: str, position: ResumeToken) -> HistoryLost:
    """Give the error of a position whose shard is no longer there: what it wrote last may be missing."""
    return HistoryLost(f"shard {name} has left the cluster; what it wrote after {position} cannot be read any more")


class ClusterStream:
    """A stream of `ClusterHub` as capture reads it: it waits for events, and says when there are none.

    An empty batch means that all shards were read up to the end. While one of them does not answer, batches are
    unfinished and without operation time, so that nobody takes the silence for the end.
    """

    def __init__(
        self,
        hub: ClusterHub,
        target: Target,
        pipeline: list[Mapping[str, Any]],
        options: Mapping[str, Any],
        choice: EventChoice | None,
        *,
        await_seconds: float,
        one_by_one: bool,
    ) -> None:
        """Open the stream; the hub is its own from now on."""
        self._hub = hub
        self._choice = choice
        self._await_seconds = await_seconds
        self._batch_size = 1 if one_by_one else EVENTS_PER_BATCH
        self._data_available = threading.Event()
        self._next_asked = 0.0
        positions = read_positions(options.get("startAfter"))
        try:
            self._check_shards(positions)
            self._latest = hub.latest()
            spec = read_spec(target, pipeline, options, hub.dialect)
            self._stream = hub.follow(spec, latest=self._latest, now=datetime.now(UTC), positions=positions)
        except BaseException:
            hub.close()
            raise
        self._stream.polled_events = self._batch_size
        hub.on_data(lambda _: self._data_available.set())

    def batches(self) -> Iterator[EventBatch]:
        """Give batch after batch, also those without events: their position is new."""
        while not self._stream.is_closed:
            yield self._next_batch()

    def close(self) -> None:
        """Free the cursors on all shards."""
        self._stream.close()
        self._hub.close()

    def _check_shards(self, positions: Mapping[str, ResumeToken]) -> None:
        """Refuse to pass over a shard that has left, or was left out."""
        gone = sorted(positions.keys() - set(self._hub.shards))
        if not gone:
            return
        name = gone[0]
        if not self._hub.follows_config:
            hint = "Name every shard of the cluster in capture.shards."
            raise SettingsError(f"the position has shard {name}, which is not among those that are named", hint=hint)
        raise shard_left(name, positions[name])

    def _next_batch(self) -> EventBatch:
        deadline = time.monotonic() + self._await_seconds
        while True:
            self._data_available.clear()
            batch = self._stream.poll(self._batch_size)
            if batch.events:
                self._ask_for_positions()
                if self._choice is not None:
                    return self._choice.batch(batch.events, batch.token, self._operation_time)
                return Batch([event.raw for event in batch.events], batch.token, self._operation_time)
            left = deadline - time.monotonic()
            if left <= 0 or self._stream.is_closed:
                return self._empty(batch.token)
            self._wait(left)

    def _empty(self, token: bytes) -> EventBatch:
        waits = self._stream.has_buffered or self._stream.is_catching_up
        reached = ResumeToken.parse(token).time
        if waits or reached < self._latest or self._operation_time is None:
            return UnfinishedBatch(token, self._operation_time)
        return Batch([], token, self._operation_time)

    def _wait(self, seconds: float) -> None:
        if self._stream.is_catching_up:
            self._data_available.wait(min(seconds, _CATCH_UP_PAUSE))
        elif not self._stream.has_data:
            self._data_available.wait(seconds)

    def _ask_for_positions(self) -> None:
        """Have idle shards come along once in a while; where shards do not wait for each other nobody else asks."""
        now = time.monotonic()
        if now >= self._next_asked:
            self._next_asked = now + self._await_seconds
            self._hub.advance_to(self._reached)

    @property
    def _reached(self) -> int:
        return max(hub.reached for hub in self._hub.hubs.values())

    @property
    def _operation_time(self) -> Timestamp | None:
        """How far the cluster is; None while a shard does not answer."""
        if self._hub.stalled or any(hub.error for hub in self._hub.hubs.values()):
            return None
        return ClusterTime(self._reached).timestamp
