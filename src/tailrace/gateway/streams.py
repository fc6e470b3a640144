"""Change streams for clients: opened on the hub, read without ever blocking the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from pymongo import MongoClient

from tailrace import raw
from tailrace.cluster import ClusterHub, MergedReading
from tailrace.engine.options import StreamSpec
from tailrace.engine.stream import MAX_BATCH_BYTES
from tailrace.engine.user_stages import are_quick
from tailrace.gateway.fair_workers import FairWorkers
from tailrace.gateway.fairness import TokenBucket
from tailrace.hub import Batch, EventLog, Hub, Subscription
from tailrace.hub.catch_up import ShardScan
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token.resume_token import ResumeToken

AnyHub: TypeAlias = Hub | ClusterHub
AnySubscription: TypeAlias = Subscription[ShardScan] | Subscription[MergedReading]

_WORKERS: Final = 32
_STAGE_WORKERS: Final = 4
_SCAN_WORKERS: Final = 8
_REPLY_BYTES: Final = 256 * 1024 * 1024
_LEAST_REPLY_BYTES: Final = 256 * 1024
"""All clients together may have so much on its way to them; a few of them each what a server sends, up to 16 MB."""
_CATCH_UP_PAUSE: Final = 0.02
_LOOP_SHARE: Final = 0.25
_LOOP_SECONDS: Final = 0.02
"""What part of the event loop's time events may be made on it, and for how long at once: each channel takes a few
milliseconds at most, but there may be a thousand of them, each with another filter."""
_PAUSE: Final = 0.001
_PAUSE_FOR_EACH: Final = 0.0002
_LONGEST_PAUSE: Final = 0.05
"""Watchers are woken again after a pause that grows with their number, up to this: a reply costs some 50 us."""


class Streams:
    """Opens subscriptions, waits for data in their channels, and has events made by a thread."""

    def __init__(self, hub: AnyHub, client: MongoClient[Any], stage_seconds: float | None = None) -> None:
        """Serve a hub; `stage_seconds` is the processor time that a stream's stages may take for one event."""
        self.hub = hub
        self.cluster_time: bytes | None = None
        """The newest `$clusterTime` that the upstream has reported, with its signature."""
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._workers = FairWorkers(_WORKERS, "gateway")
        self._stage_workers = FairWorkers(_STAGE_WORKERS, "stages")
        """For streams whose stages may take their time: those wait for each other, and nobody for them."""
        self._scan_workers = FairWorkers(_SCAN_WORKERS, "scans")
        """For streams that catch up: what they read and compute is bounded by nothing but the oplog's length."""
        self._stage_seconds = stage_seconds
        self._on_loop = TokenBucket(_LOOP_SHARE, _LOOP_SECONDS, _LOOP_SECONDS, time.monotonic())
        self._waiting: dict[EventLog, set[asyncio.Future[None]]] = {}
        self._with_data: set[EventLog] = set()
        self._early: list[asyncio.Future[None]] = []
        """Those who asked for more before the next wake."""
        self._next_wake = 0.0
        self._is_wake_set = False
        self._making: dict[tuple[EventLog, str], asyncio.Future[None]] = {}
        self.stopping = asyncio.Event()
        hub.on_data(self._on_data_available)

    async def open(
        self, spec: StreamSpec, positions: Mapping[str, ResumeToken] | None = None, *, owner: str
    ) -> AnySubscription:
        """Open a stream for an owner, by default behind the newest operation."""
        spec = replace(spec, stage_seconds=self._stage_seconds)
        workers = self._workers if are_quick(spec.stages) else self._stage_workers
        return await workers.run(owner, self._subscribe, spec, positions)

    def _subscribe(self, spec: StreamSpec, positions: Mapping[str, ResumeToken] | None) -> AnySubscription:
        reply = self._client.admin.command("ping")
        self.note_cluster_time(raw.from_python({"t": reply.get("$clusterTime")}).data if reply else raw.EMPTY)
        now = datetime.now(UTC)
        if isinstance(self.hub, ClusterHub):
            return self.hub.subscribe(spec, latest=self.hub.latest(), now=now, positions=positions)
        return self.hub.subscribe(spec, latest=ClusterTime.from_timestamp(reply["operationTime"]), now=now)

    def note_cluster_time(self, reply: bytes) -> None:
        """Remember the cluster time of a reply, when it is newer than the last one seen."""
        found = raw.field(reply, b"$clusterTime") or raw.field(reply, b"t")
        if found is None or found.kind != raw.DOCUMENT:
            return
        if self.cluster_time is None or (raw.time_in(found.data, b"clusterTime") or 0) > (
            raw.time_in(self.cluster_time, b"clusterTime") or 0
        ):
            self.cluster_time = found.data

    async def next_batch(
        self, subscription: AnySubscription, max_events: int | None, seconds: float, *, owner: str
    ) -> Batch:
        """Wait until there are events, the stream ends, or so many seconds have passed."""
        deadline = self._loop.time() + seconds
        if seconds and subscription.is_caught_up:
            await self._wait_for_the_others(seconds)
        if subscription.is_idle and seconds and not self.stopping.is_set():
            await self._wait(subscription, deadline - self._loop.time())
        while True:
            before = subscription.position
            batch = await self._poll(subscription, max_events, owner)
            left = deadline - self._loop.time()
            if batch.events or subscription.is_closed or left <= 0 or max_events == 0 or self.stopping.is_set():
                return batch
            if subscription.is_catching_up and subscription.position != before:
                continue  # there was something to read, of which nothing was for this stream
            await self._wait(subscription, left)

    async def close(self, subscription: AnySubscription) -> None:
        """Close a stream; when it scans by itself, that has a cursor on the server."""
        await asyncio.wrap_future(self._workers.submit(subscription.close))

    def close_soon(self, subscription: AnySubscription) -> None:
        """Close a stream whose client has gone, or which has failed."""
        try:
            self._workers.submit(subscription.close)
        except RuntimeError:
            return  # the gateway has stopped, and the hub closes all that is left

    def stop(self) -> None:
        """Let all that wait return at once."""
        self.stopping.set()
        self._with_data |= set(self._waiting)
        self._wake_with_data()
        for workers in (self._workers, self._stage_workers, self._scan_workers):
            workers.close(cancel=workers is not self._workers)

    def end(self) -> None:
        """Wait no more for what threads make, when all clients have gone."""
        for making in tuple(self._making.values()):
            making.cancel()

    # --- making events

    async def _poll(self, subscription: AnySubscription, max_events: int | None, owner: str) -> Batch:
        for channel in subscription.channels:
            if channel.has_data and not self._make_events_on_loop(channel):
                await self._make_events(channel, owner)
        batch = subscription.poll_made(max_events, self._max_bytes)
        if batch is not None:
            return batch
        workers = self._scan_workers if subscription.is_catching_up else self._workers
        if subscription.is_costly:
            workers = self._stage_workers
        return await workers.run(owner, subscription.poll, max_events, self._max_bytes)

    def _make_events_on_loop(self, channel: EventLog) -> bool:
        """Make a channel's events here, if that is quick and not too much was made here lately; False when not."""
        begun = time.monotonic()
        if self._on_loop.spend(0.0, begun) < 0:
            return False
        is_made = channel.make_events_without_waiting()
        now = time.monotonic()
        self._on_loop.spend(now - begun, now)
        return is_made

    @property
    def _max_bytes(self) -> int:
        """How large a reply may be, so that clients who do not take theirs cannot fill the memory."""
        return min(MAX_BATCH_BYTES, max(_LEAST_REPLY_BYTES, _REPLY_BYTES // max(1, len(self.hub.subscribers))))

    async def _make_events(self, channel: EventLog, owner: str) -> None:
        """Have a channel's events made, once for all of an owner who wait for them: nobody waits for another's turn."""
        key = channel, owner
        making = self._making.get(key)
        if making is None:
            workers = self._stage_workers if channel.is_costly else self._workers
            making = self._loop.create_task(workers.run(owner, channel.make_events))
            self._making[key] = making
            making.add_done_callback(lambda _: self._making.pop(key, None))
        await asyncio.shield(making)

    # --- waiting

    async def _wait(self, subscription: AnySubscription, seconds: float) -> None:
        channels = subscription.channels
        if subscription.is_catching_up:
            await asyncio.sleep(min(seconds, _CATCH_UP_PAUSE))
            return
        woken: asyncio.Future[None] = self._loop.create_future()
        for channel in channels:
            self._waiting.setdefault(channel, set()).add(woken)
        late = self._loop.call_later(seconds, _resolve, woken)
        try:
            if not subscription.has_data:
                await woken
        finally:
            late.cancel()
            for channel in channels:
                self._forget(channel, woken)

    def _forget(self, channel: EventLog, woken: asyncio.Future[None]) -> None:
        waiting = self._waiting[channel]
        waiting.discard(woken)
        if not waiting:
            del self._waiting[channel]

    def _on_data_available(self, channels: AbstractSet[EventLog]) -> None:
        """Called on the hub's thread."""
        try:
            self._loop.call_soon_threadsafe(self._mark_data_available, channels)
        except RuntimeError:
            return  # the loop has ended, and with it everybody who waited

    async def _wait_for_the_others(self, seconds: float) -> None:
        """Let a client that asks again at once wait for the next wake: it then gets the same reply as all others."""
        pause = self._next_wake - self._loop.time()
        if pause <= 0:
            return
        woken: asyncio.Future[None] = self._loop.create_future()
        self._early.append(woken)
        self._set_wake()
        late = self._loop.call_later(seconds, _resolve, woken) if seconds < pause else None
        try:
            await woken
        finally:
            if late is not None:
                late.cancel()

    def _mark_data_available(self, channels: AbstractSet[EventLog]) -> None:
        """Wake those who wait, at once after a pause, and under load at most every few milliseconds.

        What comes in between leaves together, so that the work for one event is less the more there are of them.
        """
        self._with_data |= channels
        self._set_wake()

    def _set_wake(self) -> None:
        if not self._is_wake_set:
            self._is_wake_set = True
            self._loop.call_at(self._next_wake, self._wake_with_data)

    def _wake_with_data(self) -> None:
        self._is_wake_set = False
        channels, self._with_data = self._with_data, set()
        early, self._early = self._early, []
        for woken in early:
            _resolve(woken)
        count = len(early) + self._wake(channels)
        self._next_wake = self._loop.time() + min(_LONGEST_PAUSE, _PAUSE + count * _PAUSE_FOR_EACH)

    def _wake(self, channels: AbstractSet[EventLog]) -> int:
        count = 0
        for channel in channels:
            for woken in self._waiting.get(channel, ()):
                _resolve(woken)
                count += 1
        return count


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
