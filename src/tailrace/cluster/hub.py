"""The hubs of a sharded cluster: one tail per shard, and streams that are merged from all of them.

The oplog of the config servers takes part in each merge. A shard that was added shows there as an insert into
`config.shards`, which the server writes before the shard can be given anything; when the merge comes to that place,
the shard joins from that time on. mongos does the same since 4.4; before, it waited for the `migrateChunkToNewShard`
entry of the first migration, and so missed what happened in databases that the new shard had brought with it. The
shard's entries of that migration are `fromMigrate` and show nothing, so joining early doubles nothing.

A removed shard leaves when everything that it gave before its removal has left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, PyMongoError

from tailrace.cluster.lookup import ShardedImages
from tailrace.cluster.merge import Order
from tailrace.cluster.merged import MergedStream, ShardPart
from tailrace.cluster.placement import Placements
from tailrace.cluster.sequencing import ByToken, ByTokenWithPositions, PerKey, PerKeyWithPositions
from tailrace.cluster.shard import ShardHub
from tailrace.cluster.shard_stream import ShardStreamPart
from tailrace.cluster.subscription import MergedChannel, MergedReading
from tailrace.cluster.topology import CONFIG, Document, Shard, read_shards, time_of
from tailrace.engine.dialect import is_compared
from tailrace.engine.images import ImageStore
from tailrace.engine.live import LiveImages
from tailrace.engine.options import StreamSpec
from tailrace.errors import HistoryLost, ServerUnreachable, TailraceError
from tailrace.hub.event_log import EventLog, Listener
from tailrace.hub.hub import CHANNEL_BYTES, Hub, Key, lags_of, sharing_key
from tailrace.hub.subscription import Subscription
from tailrace.logs import get_logger
from tailrace.owned import OwnedThread, run_together
from tailrace.owned.closeable import Closeable
from tailrace.token.resume_token import ResumeToken

_POLL_SECONDS: Final = 2.0


class ClusterHub(Closeable):
    """Change streams over all shards; idle shards are asked how far they are when others wait for them."""

    def __init__(
        self,
        uri: str,
        *,
        shards: Mapping[str, str] | None = None,
        order: Order = Order.STRICT,
        unproved: bool = False,
        **hub_options: Any,
    ) -> None:
        """Connect to config servers; or to shards by name and URI, which then stay the only ones.

        `unproved`: whoever asks compares what the engine makes of servers that it was never compared with.
        """
        self._uri = uri
        self._order = order
        self._unproved = unproved
        self._options = hub_options
        self._lock = threading.Lock()
        self._parts: dict[str, ShardHub] = {}
        self.subscribers: set[Subscription[MergedReading] | MergedStream] = set()
        self._merges: set[MergedStream] = set()
        self._channels: dict[Key, MergedChannel] = {}
        self._channels_lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._stopping = threading.Event()
        self._placements: Placements | None = None
        self._listed_at: dict[str, int] = {}
        """When each shard was first seen in the list of the config servers."""
        self.follows_config = shards is None
        self.error: TailraceError | None = None
        """Why no stream of the cluster can go on: what it gave may lack something."""
        try:
            if shards is None:
                self._open(CONFIG, uri)
                with MongoClient[Any](uri) as client:
                    for shard in read_shards(client):
                        self._open(shard.name, shard.uri(uri))
            else:
                for name, shard_uri in shards.items():
                    self._open(name, shard_uri)
        except BaseException:
            self.close()
            raise
        self.dialect = next(iter(self._parts.values())).hub.dialect
        self._thread = OwnedThread(self._poll_shard_list, name="shard-list", on_death=lambda _: _POLL_SECONDS)
        if self.follows_config:
            self._thread.start()

    @property
    def shards(self) -> tuple[str, ...]:
        """The names of the parts, the config servers among them."""
        return tuple(self._parts)

    @property
    def builds(self) -> list[Mapping[str, Any]]:
        """What servers of each part say of their builds."""
        return [part.build for part in tuple(self._parts.values())]

    @property
    def reached(self) -> int:
        """The time up to which all shards were read."""
        return min(part.hub.reached for part in tuple(self._parts.values()))

    @property
    def stalled(self) -> dict[str, float]:
        """The shards that others wait for in vain, and for how many seconds."""
        waited = {name: part.stalled_for for name, part in tuple(self._parts.items())}
        return {name: seconds for name, seconds in waited.items() if seconds}

    @property
    def hubs(self) -> dict[str, Hub]:
        """The hubs of all parts, by name."""
        return {name: part.hub for name, part in tuple(self._parts.items())}

    def blocking_seconds(self) -> dict[str, float]:
        """Give, by shard, for how many seconds it has held back the stream that waits for it longest."""
        longest = dict.fromkeys(self.shards, 0.0)
        for merge in tuple(self._merges):
            for backlog in merge.backlogs:
                longest[backlog.shard] = max(backlog.blocking_seconds, longest.get(backlog.shard, 0.0))
        return longest

    def lags(self) -> dict[str, float]:
        """Give, by namespace, how many seconds the slowest subscriber is behind."""
        return lags_of(self.subscribers, self.reached)

    def hub(self, shard: str) -> Hub:
        """Give the hub of a shard."""
        return self._parts[shard].hub

    def subscribe(
        self, spec: StreamSpec, *, latest: int, now: datetime, positions: Mapping[str, ResumeToken] | None = None
    ) -> Subscription[MergedReading]:
        """Open a stream over all shards; with order per key, from the position of each shard if they are known."""

        def merge(asked: StreamSpec) -> MergedStream:
            strict = self._order is Order.STRICT
            sequencer = ByToken() if strict else PerKey(positions or {}, asked.options.token)
            return self._merged(asked, latest, now, sequencer)

        subscription = Subscription(self, spec, MergedReading(self, spec, merge))
        self.subscribers.add(subscription)
        return subscription

    def follow(
        self, spec: StreamSpec, *, latest: int, now: datetime, positions: Mapping[str, ResumeToken]
    ) -> MergedStream:
        """Open a stream whose batches say where each shard stands, from where each stood before if that is known."""
        sequencer = (
            ByTokenWithPositions(positions)
            if self._order is Order.STRICT
            else PerKeyWithPositions(positions, spec.options.token)
        )
        merge = self._merged(spec, latest, now, sequencer)
        self.subscribers.add(merge)
        return merge

    def _merged(self, spec: StreamSpec, latest: int, now: datetime, sequencer: ByToken) -> MergedStream:
        merge = MergedStream(self, spec, latest, now, sequencer)
        self._merges.add(merge)
        self.advance_to(latest)
        return merge

    def latest(self) -> int:
        """Give a time between everything that was written before this call and all that will be after it.

        That is the newest time that any shard knows; it is sent to the others, so that they write later ones.
        """
        parts = tuple(self._parts.values())
        try:
            newest = max((part.clock.now() for part in parts), key=time_of)
            for part in parts:
                part.clock.now(newest)
        except PyMongoError as error:
            raise ServerUnreachable(f"a shard cannot be asked for its time: {error}") from error
        return time_of(newest)

    # --- for subscriptions

    def join(
        self, subscription: Subscription[Any], spec: StreamSpec, own: MergedStream
    ) -> tuple[MergedChannel, int] | None:
        """Find the channel for a spec and the position in it that the subscriber's own merge has come to, or make one.

        None while the two have not come as far, or when the channel has lost what comes next.
        """
        key = sharing_key(spec)
        with self._channels_lock:
            channel = self._channels.get(key)
            if channel is None or not channel.goes_on:
                channel = self._channels[key] = MergedChannel(own, 0)
                self._share_bytes()
            channel.readers.add(subscription)
        if channel.merge is own:
            return channel, 0
        channel.make_events()
        position = min(own.reached, channel.end_position)
        index = channel.index_behind(position) if position >= subscription.position else None
        if index is None:
            self.leave(subscription, channel)
            return None
        return channel, index

    def leave(self, subscription: Subscription[Any], channel: MergedChannel) -> None:
        """Take a reader out of a channel; the last one closes it."""
        with self._channels_lock:
            channel.readers.discard(subscription)
            if channel.readers and channel.goes_on:
                return
            self._channels = {key: known for key, known in self._channels.items() if known is not channel}
            self._share_bytes()
        if not channel.readers:
            channel.close()

    def _share_bytes(self) -> None:
        """Give each channel its part of the bytes that all may hold together."""
        most = int(self._options.get("channel_bytes", CHANNEL_BYTES))
        for channel in self._channels.values():
            channel.max_bytes = most // len(self._channels)

    def forget(self, reader: Subscription[Any] | MergedStream) -> None:
        """Let a subscriber or a merge go."""
        self.subscribers.discard(reader)
        if isinstance(reader, MergedStream):
            self._merges.discard(reader)

    def on_data(self, listener: Listener) -> None:
        """Call the listener whenever a shard has something for somebody."""
        self._listeners.append(listener)

    def add(self, shard: Shard) -> None:
        """Begin to read a shard that was added to the cluster; a second call does nothing."""
        with self._lock:
            if shard.name not in self._parts:
                self._open(shard.name, shard.uri(self._uri))

    def retire(self, name: str) -> None:
        """Stop to read a shard that was removed, once no stream is at a place where it still took part."""
        with self._lock:
            if name in self._parts and not any(name in each.shards for each in tuple(self._merges)):
                part = self._parts.pop(name)
                OwnedThread(part.close, name=f"close-{name}").start()

    def close(self) -> None:
        """Stop all tails."""
        self._stopping.set()
        run_together([part.close for part in self._parts.values()], name="close-shard")

    def removed_by(self, name: str) -> int | None:
        """Give a time behind the removal of a shard; None while it belongs to the cluster."""
        part = self._parts.get(name)
        return None if part is None else part.removed_by

    def _open(self, name: str, uri: str) -> None:
        part = ShardHub(
            name, uri, self._options, images=self._images(name), newest_time=self._newest_time, unproved=self._unproved
        )
        part.hub.on_data(self._on_data)
        part.hub.on_progress(self._on_progress)
        self._parts[name] = part

    def _images(self, name: str) -> Callable[[MongoClient[Any]], ImageStore]:
        """Have documents of a cluster looked up on all shards; those of a fixed list each keep their own."""
        if not self.follows_config or name == CONFIG:
            return LiveImages

        def make(own: MongoClient[Any]) -> ImageStore:
            config = self._parts[CONFIG]
            placements = self._placements = self._placements or Placements(config.client, config.hub.dialect)
            # This shard itself is not among the parts yet.
            return ShardedImages(
                name, LiveImages(own), placements, lambda shard: own if shard == name else self.client(shard)
            )

        return make

    def open_part(self, shard: str, spec: StreamSpec, latest: int, now: datetime) -> ShardPart:
        """Open one shard's part of a merged stream; that of the config servers is always read by the engine."""
        if spec.served_by_shards:
            return ShardStreamPart(self.client(shard), self.hub(shard), spec)
        return self.hub(shard).subscribe(spec, latest=latest, now=now)

    def client(self, shard: str) -> MongoClient[Any]:
        """Give the client of a shard."""
        part = self._parts.get(shard)
        if part is None:
            raise ConnectionFailure(f"shard {shard} is not known here yet")
        return part.client

    # --- shards wait for each other

    def _on_data(self, channels: AbstractSet[EventLog]) -> None:
        """Wake the readers, and have the other shards come so far that they may have what was read."""
        if self._order is Order.STRICT:
            self.advance_to(max(part.hub.target_time for part in tuple(self._parts.values())))
        self._notify({*channels, *_channels_of(each for each in tuple(self._merges) if each.is_served_by_shards)})

    def _on_progress(self) -> None:
        """Wake those who may wait for a shard to come further."""
        waiting = _channels_of(each for each in tuple(self._merges) if each.has_buffered or each.is_served_by_shards)
        if waiting:
            self._notify(waiting)

    def _notify(self, channels: AbstractSet[EventLog]) -> None:
        """Notify the readers of these channels, and of the channels merged from them."""
        merged = [each for each in tuple(self._channels.values()) if not channels.isdisjoint(each.merge.channels)]
        for listener in tuple(self._listeners):
            listener({*channels, *merged})

    def advance_to(self, time: int) -> None:
        """Have all shards come up to a time, the idle ones too."""
        for part in tuple(self._parts.values()):
            part.advance_to(time)

    def _newest_time(self) -> Document:
        """Ask the shard that has come furthest for the time, as that is signed; the next one if it is silent."""
        failed: PyMongoError | None = None
        parts = list(self._parts.values())
        parts.sort(key=lambda part: part.hub.reached, reverse=True)
        for part in parts:
            try:
                return part.clock.now()
            except PyMongoError as error:
                failed = error
        raise failed or ConnectionFailure("there are no shards")

    @property
    def _has_unknown_builds(self) -> bool:
        return not all(is_compared(build["version"]) for build in self.builds)

    def _check_listed(self, names: set[str], now: int) -> None:
        """Notice a shard that joined unseen: of an unknown release, nobody knows how its config servers log that."""
        if not self._has_unknown_builds:
            return
        for name in names & self._listed_at.keys():
            if any(
                each.position.time > self._listed_at[name] and name not in each.shards for each in tuple(self._merges)
            ):
                self.error = HistoryLost(f"shard {name} was added, and the stream has come further without its events")
        self._listed_at = {name: self._listed_at.get(name, now) for name in names}

    # --- shards that leave

    def _poll_shard_list(self) -> None:
        """Compare with the list now and then: 6.0.5 logs a removal as a plain `applyOps`, which no stream shows."""
        config = self._parts[CONFIG]
        while not self._stopping.wait(_POLL_SECONDS):
            try:
                listed = {shard.name for shard in config.clock.shards()}
                now = time_of(config.clock.now())
            except PyMongoError as error:
                get_logger().debug("shards_not_listed", error=str(error))
                continue
            self._check_listed(listed, now)
            for name, part in tuple(self._parts.items()):
                if name != CONFIG and name not in listed and part.removed_by is None:
                    get_logger().info("shard_removed", shard=name)
                    part.removed_by = now
                    part.advance_to(now + 1)
                    self.retire(name)


def _channels_of(merges: Iterable[MergedStream]) -> set[EventLog]:
    return {channel for merge in merges for channel in merge.channels}
