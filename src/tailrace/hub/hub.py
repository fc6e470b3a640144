"""The hub of one shard: a thread that reads the oplog once, and hands each entry to the channels that may want it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias

from tailrace import raw
from tailrace.engine.dialect import Dialect
from tailrace.engine.images import ImageStore, NoImages
from tailrace.engine.options import ChangeStreamOptions, StreamSpec
from tailrace.engine.stream import EngineStream, open_stream
from tailrace.engine.user_stages import compile_stages
from tailrace.errors import HistoryLost, TailraceError, ThreadDied
from tailrace.hub.catch_up import ShardScan
from tailrace.hub.channel import Channel
from tailrace.hub.event_log import Listener
from tailrace.hub.ring import Ring
from tailrace.hub.routes import Routes
from tailrace.hub.staged import StagedChannel, may_be_staged
from tailrace.hub.subscription import Subscription
from tailrace.logs import get_logger
from tailrace.oplog.source import OplogBatch, OplogReader, OplogSource
from tailrace.owned import OwnedThread
from tailrace.owned.closeable import Closeable
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token.resume_token import ResumeToken

RING_BYTES: Final = 64 * 1024 * 1024
CHANNEL_BYTES: Final = 128 * 1024 * 1024
"""For all channels together."""
_LEAST_CHANNEL_BYTES: Final = 256 * 1024
SCAN_BYTES: Final = 128 * 1024 * 1024
"""What all that catch up may hold of the oplog together while nobody reads from them."""
_PAUSE: Final = 1.0
_CHANGES_WITH_TIME: Final = (b"NOW", b"CLUSTER_TIME", b"$rand", b"$sampleRate", b"$function", b"$where")
"""Where a stage has one of these, the same event may give different results to two subscribers."""

Key: TypeAlias = tuple[object, ...]
AnyChannel: TypeAlias = Channel | StagedChannel


@dataclass(slots=True)
class HubCounts:
    """What a hub has done so far."""

    entries: int = 0
    entry_bytes: int = 0
    scans: int = 0
    """Scans of their own that subscribers made to catch up."""
    restarts: int = 0
    """How often the tail lost its place and began anew at the end."""


class Hub(Closeable):
    """One oplog tail for any number of subscribers."""

    def __init__(
        self,
        oplog: Any,
        dialect: Dialect,
        *,
        images: ImageStore | None = None,
        ring_bytes: int = RING_BYTES,
        channel_bytes: int = CHANNEL_BYTES,
        catch_up: OplogSource | None = None,
    ) -> None:
        self.oplog: OplogSource = catch_up or oplog
        self.dialect = dialect
        self.counts = HubCounts()
        self.error: TailraceError | None = None
        """Why the tail does not move at the moment."""
        self.target_time = 0
        """How far it had come when it last had something for somebody."""
        self._tail_source = oplog
        self._images = images or NoImages()
        self._channel_bytes = channel_bytes
        self._lock = threading.Lock()
        self._routes: Routes[Channel] = Routes()
        self._channels: dict[Key, AnyChannel] = {}
        self._listeners: list[Listener] = []
        self._progress_listeners: list[Callable[[], None]] = []
        self.subscribers: set[Subscription[ShardScan]] = set()
        self._open_scans = 0
        self._scan_bytes = 0
        self._ring_bytes = ring_bytes
        self._ring, self._tail = self._begin()
        self._stopping = threading.Event()
        self._failure: TailraceError | None = None
        """Why the last batch came to some channels and not to others, until the tail has begun anew."""
        self._thread = OwnedThread(self._run, name="hub", on_death=self._died)
        self._thread.start()

    # --- for those who subscribe

    def subscribe(self, spec: StreamSpec, *, latest: int, now: datetime) -> Subscription[ShardScan]:
        """Open a stream; refusals are those of the upstream server.

        `latest` is the time behind which a stream without a start position begins.
        """
        subscription = Subscription(self, spec, ShardScan(self, spec, latest, now))
        subscription.join()
        self.subscribers.add(subscription)
        return subscription

    def on_data(self, listener: Listener) -> None:
        """Call the listener, on the hub's thread, whenever channels were given entries, or were evicted."""
        self._listeners.append(listener)

    def on_progress(self, listener: Callable[[], None]) -> None:
        """Call the listener, on the hub's thread, whenever entries were read that nobody here wants."""
        self._progress_listeners.append(listener)

    def close(self) -> None:
        """Stop reading and end the thread, which closes its cursor itself."""
        self._stopping.set()
        self._thread.join(timeout=30)

    @property
    def reached(self) -> int:
        """The time of the newest entry that was read."""
        return self._ring.reached

    @property
    def ring_size(self) -> int:
        """How many bytes the ring holds."""
        return self._ring.size

    @property
    def channels(self) -> int:
        """How many channels there are."""
        return len(self._channels)

    @property
    def upstream_cursors(self) -> int:
        """How many cursors the upstream's oplog has: one, and one for each subscriber that catches up."""
        return 1 + self._open_scans

    def lags(self) -> dict[str, float]:
        """Give, by namespace, how many seconds the slowest subscriber is behind."""
        return lags_of(self.subscribers, self.reached)

    # --- for subscriptions

    def count_scan(self, change: int) -> None:
        """Count a scan of its own that a subscriber begins or ends."""
        with self._lock:
            self._open_scans += change
            self.counts.scans += change > 0

    def count_scan_bytes(self, change: int) -> bool:
        """Count what a scan holds of the oplog between two reads; False when all of them hold too much."""
        with self._lock:
            self._scan_bytes += change
            return self._scan_bytes <= SCAN_BYTES

    def recent(self, time: int) -> OplogBatch | None:
        """Give entries behind a time from the ring; None when it begins later."""
        with self._lock:
            return self._ring.after(time)

    def contains(self, time: int) -> bool:
        """Return whether the ring holds everything behind a time that is past."""
        with self._lock:
            return self._ring.low <= time <= self._ring.reached

    def open_stream(self, spec: StreamSpec, source: OplogSource, latest: int, now: datetime) -> EngineStream:
        """Open the engine's stages over what a source gives."""
        return open_stream(spec, source, self.dialect, latest=latest, images=self._images, now=now)

    def join(
        self, subscription: Subscription[Any], spec: StreamSpec, latest: int, now: datetime, behind: int
    ) -> tuple[AnyChannel, int] | None:
        """Find or make the channel for a spec, and the index in it of the first event behind a time."""
        channel = self._channel(spec, latest, now)
        channel.readers.add(subscription)
        channel.make_events()
        has_come_so_far = not channel.is_ended and not channel.error and channel.reached >= behind
        index = channel.index_after(behind) if has_come_so_far else None
        if index is None:
            self.leave(subscription, channel)
            return None
        return channel, index

    def leave(self, subscription: Subscription[Any], channel: AnyChannel) -> None:
        """Take a reader out of a channel; the last one closes it."""
        with self._lock:
            channel.readers.discard(subscription)
            if not channel.readers or channel.is_broken or channel.is_ended or channel.error:
                self._remove(channel)

    def forget(self, subscription: Subscription[Any]) -> None:
        """Let a subscriber go."""
        self.subscribers.discard(subscription)

    def _channel(self, spec: StreamSpec, latest: int, now: datetime) -> AnyChannel:
        pipeline = compile_stages(spec, self.dialect, now, ClusterTime(latest).timestamp)
        if pipeline is not None and not may_be_staged(spec, pipeline):
            return self._whole_channel_with_stages(spec, latest, now)
        with self._lock:
            if pipeline is None:
                return self._whole_channel(spec, latest, now)
            known = self._usable(sharing_key(spec))
            if known is None:
                base = self._whole_channel(replace(spec, stages=()), latest, now)
                known = StagedChannel(base, spec.stages, pipeline, self.dialect)
                base.readers.add(known)
                base.derived.add(known)
                self._keep(spec, known)
            return known

    def _whole_channel(self, spec: StreamSpec, latest: int, now: datetime) -> Channel:
        known = self._usable(sharing_key(spec))
        if isinstance(known, Channel):
            return known
        channel = self._new_channel(spec, latest, now)
        self._keep(spec, channel)
        self._routes.add(channel)
        return channel

    def _whole_channel_with_stages(self, spec: StreamSpec, latest: int, now: datetime) -> Channel:
        """Do the same where stages are compiled, without the lock: everybody's entries wait for that.

        What comes meanwhile is found in the ring; where it has left that already, all begins anew.
        """
        while True:
            made = self._new_channel(spec, latest, now)
            with self._lock:
                known = self._usable(sharing_key(spec))
                if isinstance(known, Channel):
                    return known
                self._routes.add(made)
                if self._feed_from_ring(made):
                    self._keep(spec, made)
                    return made
                self._routes.remove(made)

    def _feed_from_ring(self, channel: Channel) -> bool:
        """Give a channel all that was read since it was made; False when some of that is gone."""
        while channel.fed < self._ring.reached:
            missed = self._ring.after(channel.fed)
            if missed is None:
                return False
            for entry in missed.entries:
                if channel in self._routes.of(entry):
                    channel.feed(entry)
            channel.fed = missed.reached
        return True

    def _usable(self, key: Key) -> AnyChannel | None:
        """Find a channel that still goes on; one that does not is forgotten."""
        known = self._channels.get(key)
        if known is not None and (known.is_broken or known.is_ended or known.error):
            self._remove(known)
            return None
        return known

    def _keep(self, spec: StreamSpec, channel: AnyChannel) -> None:
        self._channels[sharing_key(spec)] = channel
        self._share_bytes()

    def _new_channel(self, spec: StreamSpec, latest: int, now: datetime) -> Channel:
        return Channel(
            spec,
            self._ring.reached,
            lambda asked, inbox: self.open_stream(asked, inbox, latest, now),
            self.oplog.entry_at,
            self._channel_bytes,
            looks_up=not self.dialect.since(6, 0),  # older servers do not log the shard keys of what is inserted
        )

    def _remove(self, channel: AnyChannel) -> None:
        for key in [key for key, known in self._channels.items() if known is channel]:
            del self._channels[key]
        if isinstance(channel, StagedChannel):
            channel.base.derived.discard(channel)
            channel.base.readers.discard(channel)
            if not channel.base.readers:
                self._remove(channel.base)
        else:
            self._routes.remove(channel)
        self._share_bytes()

    def _share_bytes(self) -> None:
        """Give each channel its part of the bytes that all may hold together."""
        part = max(_LEAST_CHANNEL_BYTES, self._channel_bytes // max(1, len(self._channels)))
        for channel in self._channels.values():
            channel.max_bytes = part

    # --- the tail

    def _begin(self) -> tuple[Ring, OplogReader]:
        newest = self._tail_source.newest()
        return Ring(newest - 1, self._ring_bytes), self._tail_source.open(newest)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._failure is not None:
                self._begin_anew(self._failure)
                continue
            try:
                batch = next(self._tail)
            except HistoryLost as error:
                self._begin_anew(error)
            except TailraceError as error:
                self._report_error(error)
            else:
                self._spread(batch._replace(entries=list(batch.entries)))  # the ring and all channels share them
                self.error = None
        self._tail.close()

    def _died(self, error: BaseException) -> float:
        """Begin anew behind what could not be spread: each subscriber reads it by itself, or meets the error."""
        self._failure = error if isinstance(error, TailraceError) else ThreadDied(f"the hub's tail failed: {error!r}")
        return 0.0

    def _spread(self, batch: OplogBatch) -> None:
        """Put a batch into the ring and its entries into the inboxes, as one step for all who look."""
        fed: set[Channel] = set()
        with self._lock:
            self._ring.append(batch)
            routes = self._routes.of
            if self._channels:
                for entry in batch.entries:
                    for channel in routes(entry):
                        channel.feed(entry)
                        fed.add(channel)
                for known in self._channels.values():
                    if isinstance(known, Channel):
                        known.fed = self._ring.reached
            touched: set[AnyChannel] = set(fed).union(*(channel.derived for channel in fed))
        self.counts.entries += len(batch.entries)
        self.counts.entry_bytes += sum(map(len, batch.entries))
        if touched:
            self.target_time = batch.reached
            self._notify(touched)
        elif batch.entries:
            for listener in self._progress_listeners:
                listener()

    def _begin_anew(self, error: TailraceError) -> None:
        """Go on at the end: the tail was too slow. Subscribers read the rest by scans of their own, or get an error."""
        self._report_error(error)
        self.counts.restarts += 1
        try:
            ring, tail = self._begin()
            self._tail.close()
        except TailraceError as again:
            self._report_error(again)
            return
        with self._lock:
            self._ring, self._tail = ring, tail
            broken = set(self._channels.values())
            for channel in broken:
                channel.is_broken = True
                self._remove(channel)
        self._failure = None
        self._notify(broken)

    def _report_error(self, error: TailraceError) -> None:
        if self._stopping.is_set():
            return
        if self.error is None or self.error.code != error.code:
            get_logger().warning("hub_stalled", error=error.code, message=error.message)
        self.error = error
        self._stopping.wait(_PAUSE)

    def _notify(self, channels: set[AnyChannel]) -> None:
        for listener in tuple(self._listeners):
            listener(channels)


class Watching(Protocol):
    """What watches a namespace and stands somewhere."""

    @property
    def namespace(self) -> str:
        """What it watches."""

    @property
    def position(self) -> ResumeToken:
        """Behind the last event that was given, or further."""


def lags_of(watching: Iterable[Watching], reached: int) -> dict[str, float]:
    """Give, by namespace, how many seconds the slowest is behind a time."""
    behind: dict[str, float] = {}
    for each in tuple(watching):
        lag = max(0.0, ClusterTime(reached).seconds - each.position.time.seconds)
        behind[each.namespace] = max(lag, behind.get(each.namespace, 0.0))
    return behind


def sharing_key(spec: StreamSpec) -> Key:
    """Give what two subscribers must have in common to share their events."""
    stages = raw.encode({"": list(spec.stages)})
    options: ChangeStreamOptions = replace(
        spec.options, resume_after=None, start_after=None, start_at_operation_time=None
    )
    private = object() if any(name in stages for name in _CHANGES_WITH_TIME) else None
    return spec.scope, options, stages, spec.from_router, spec.token_version, spec.served_by_shards, private
