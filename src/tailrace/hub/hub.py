"""The hub of one shard: a thread that reads the oplog once, and hands each entry to the channels that may want it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

import bson
import structlog

from tailrace.engine.dialect import Dialect
from tailrace.engine.images import ImageStore, NoImages
from tailrace.engine.options import ChangeStreamOptions, StreamSpec
from tailrace.engine.stream import EngineStream, open_stream
from tailrace.errors import HistoryLost, TailraceError
from tailrace.hub.channel import Channel
from tailrace.hub.reader import CatchUpReader
from tailrace.hub.ring import Ring
from tailrace.hub.routes import Routes
from tailrace.hub.subscription import Subscription
from tailrace.oplog.source import OplogBatch, OplogReader, OplogSource

RING_BYTES: Final = 64 * 1024 * 1024
CHANNEL_BYTES: Final = 128 * 1024 * 1024
"""For all channels together."""
_LEAST_CHANNEL_BYTES: Final = 256 * 1024
_PAUSE: Final = 1.0
_CHANGES_WITH_TIME: Final = (b"NOW", b"CLUSTER_TIME", b"$rand", b"$sampleRate", b"$function", b"$where")
"""Where a stage has one of these, the same event may give different results to two subscribers."""

Key: TypeAlias = tuple[object, ...]
Listener: TypeAlias = Callable[[set[Channel]], None]


@dataclass(slots=True)
class HubCounts:
    """What a hub has done so far."""

    entries: int = 0
    entry_bytes: int = 0
    scans: int = 0
    """Scans of their own that subscribers made to catch up."""
    restarts: int = 0
    """How often the tail lost its place and began anew at the end."""


class Hub:
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
        self.wanted = 0
        """How far it had come when it last had something for somebody."""
        self._tail_source = oplog
        self._images = images or NoImages()
        self._channel_bytes = channel_bytes
        self._lock = threading.Lock()
        self._routes: Routes[Channel] = Routes()
        self._channels: dict[Key, Channel] = {}
        self._listeners: list[Listener] = []
        self._progress_listeners: list[Callable[[], None]] = []
        self.subscribers: set[Subscription] = set()
        self._open_scans = 0
        self._ring_bytes = ring_bytes
        self._ring, self._tail = self._begin()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
        self._thread.start()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for those who subscribe

    def subscribe(self, spec: StreamSpec, *, latest: int, now: datetime) -> Subscription:
        """Open a stream; refusals are those of the upstream server.

        `latest` is the time behind which a stream begins that was not told otherwise.
        """
        subscription = Subscription(self, spec, latest, now)
        self.subscribers.add(subscription)
        return subscription

    def on_news(self, listener: Listener) -> None:
        """Call the listener, on the hub's thread, whenever channels were given entries, or were given up."""
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
        behind: dict[str, float] = {}
        now = self.reached >> 32
        for subscriber in tuple(self.subscribers):
            lag = max(0.0, now - (subscriber.position_time >> 32))
            behind[subscriber.namespace] = max(lag, behind.get(subscriber.namespace, 0.0))
        return behind

    def all_channels(self) -> set[Channel]:
        """Give all channels, for whoever wants to wake their readers."""
        with self._lock:
            return set(self._channels.values())

    # --- for subscriptions

    def count_scan(self, change: int) -> None:
        """Count a scan of its own that a subscriber begins or ends."""
        with self._lock:
            self._open_scans += change
            self.counts.scans += change > 0

    def recent(self, time: int) -> OplogBatch | None:
        """Give entries behind a time from the ring; None when it begins later."""
        with self._lock:
            return self._ring.after(time)

    def holds(self, time: int) -> bool:
        """Tell whether the ring holds everything behind a time that is past."""
        with self._lock:
            return self._ring.low <= time <= self._ring.reached

    def open_scan(self, spec: StreamSpec, latest: int, now: datetime) -> tuple[EngineStream, CatchUpReader]:
        """Open a stream that reads by itself, from the ring or from the shard."""
        source = _CatchUpSource(self)
        stream = open_stream(spec, source, self.dialect, latest=latest, images=self._images, now=now)
        return stream, source.reader

    def join(
        self, subscription: Subscription, spec: StreamSpec, latest: int, now: datetime, behind: int
    ) -> tuple[Channel, int] | None:
        """Find or make the channel for a spec, and the index in it of the first event behind a time."""
        channel = self._channel(spec, latest, now)
        channel.readers.add(subscription)
        channel.make_events()
        index = None if channel.is_ended or channel.error else channel.index_after(behind)
        if index is None:
            self.leave(subscription, channel)
            return None
        return channel, index

    def leave(self, subscription: Subscription, channel: Channel) -> None:
        """Take a reader out of a channel; the last one closes it."""
        with self._lock:
            channel.readers.discard(subscription)
            if not channel.readers or channel.is_broken or channel.is_ended or channel.error:
                self._remove(channel)

    def forget(self, subscription: Subscription) -> None:
        """Let a subscriber go."""
        self.subscribers.discard(subscription)

    def _channel(self, spec: StreamSpec, latest: int, now: datetime) -> Channel:
        key = _key(spec)
        with self._lock:
            channel = self._channels.get(key)
            if channel is None or channel.is_broken or channel.is_ended or channel.error:
                if channel is not None:
                    self._remove(channel)
                channel = self._new_channel(spec, latest, now)
                self._channels[key] = channel
                self._routes.add(channel)
                self._share_bytes()
            return channel

    def _new_channel(self, spec: StreamSpec, latest: int, now: datetime) -> Channel:
        return Channel(
            spec,
            self._ring.reached,
            lambda asked, inbox: open_stream(asked, inbox, self.dialect, latest=latest, images=self._images, now=now),
            self.oplog.entry_at,
            self._channel_bytes,
        )

    def _remove(self, channel: Channel) -> None:
        self._routes.remove(channel)
        for key in [key for key, known in self._channels.items() if known is channel]:
            del self._channels[key]
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
            try:
                batch = next(self._tail)
            except HistoryLost as error:
                self._begin_anew(error)
            except TailraceError as error:
                self._complain(error)
            else:
                self.error = None
                self._spread(batch)
        self._tail.close()

    def _spread(self, batch: OplogBatch) -> None:
        """Put a batch into the ring and its entries into the inboxes, as one step for all who look."""
        touched: set[Channel] = set()
        with self._lock:
            self._ring.append(batch)
            routes = self._routes.of
            if self._channels:
                for entry in batch.entries:
                    for channel in routes(entry):
                        channel.feed(entry)
                        touched.add(channel)
                for channel in self._channels.values():
                    channel.fed = self._ring.reached
        self.counts.entries += len(batch.entries)
        self.counts.entry_bytes += sum(map(len, batch.entries))
        if touched:
            self.wanted = batch.reached
            self._tell(touched)
        elif batch.entries:
            for listener in self._progress_listeners:
                listener()

    def _begin_anew(self, error: TailraceError) -> None:
        """Go on at the end: the tail was too slow. Subscribers look for the rest by themselves, or are told."""
        self._complain(error)
        self.counts.restarts += 1
        try:
            ring, tail = self._begin()
        except TailraceError as again:
            self._complain(again)
            return
        with self._lock:
            self._ring, self._tail = ring, tail
            broken = set(self._channels.values())
            for channel in broken:
                channel.is_broken = True
                self._remove(channel)
        self._tell(broken)

    def _complain(self, error: TailraceError) -> None:
        if self._stopping.is_set():
            return
        if self.error is None or self.error.code != error.code:
            structlog.get_logger().warning("hub_stalled", error=error.code, message=error.message)
        self.error = error
        self._stopping.wait(_PAUSE)

    def _tell(self, channels: set[Channel]) -> None:
        for listener in tuple(self._listeners):
            listener(channels)


class _CatchUpSource:
    """The oplog as a subscriber that catches up sees it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.reader: CatchUpReader

    def open(self, since: int) -> CatchUpReader:
        """Begin with the first entry at or after a time."""
        self.reader = CatchUpReader(self._hub, since)
        return self.reader

    def entry_at(self, time: int) -> bytes:
        """Read the entry of exactly this time."""
        return self._hub.oplog.entry_at(time)


def _key(spec: StreamSpec) -> Key:
    """Give what two subscribers must have in common to share their events."""
    stages = bson.encode({"": list(spec.stages)})
    options: ChangeStreamOptions = replace(
        spec.options, resume_after=None, start_after=None, start_at_operation_time=None
    )
    private = object() if any(name in stages for name in _CHANGES_WITH_TIME) else None
    return spec.scope, options, stages, spec.from_router, spec.v2_tokens, private
