"""The hubs of a sharded cluster: one tail per shard, and streams that are merged from all of them.

The oplog of the config servers takes part in each merge. A shard that was added shows there as an insert into
`config.shards`, at a time at which it has no document of the cluster yet; when the merge comes to that place, the
shard joins from that time on. A removed shard leaves when everything that it gave before its removal has left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Final

import structlog
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tailrace.engine.dialect import Dialect
from tailrace.engine.live import LiveImages
from tailrace.engine.options import StreamSpec
from tailrace.hub.channel import Channel
from tailrace.hub.hub import Hub
from tailrace.hub.merged import MergedSubscription
from tailrace.oplog.tail import LiveOplog
from tailrace.router.topology import CONFIG, Shard, ShardClock, read_shards, time_of

_AWAIT_MS: Final = 500
_SECONDS_BETWEEN_ROUNDS: Final = 0.01
_SECONDS_WITHOUT_NEWS: Final = 0.5
_SECONDS_BETWEEN_TRIES: Final = 1.0
_SECONDS_BETWEEN_LOOKS: Final = 2.0
_STALLED_AFTER: Final = 2.0
_SOCKET_TIMEOUT_MS: Final = 20_000


class ShardHub:
    """One shard, or the config servers: its client, its hub, its clock."""

    def __init__(self, name: str, uri: str, hub_options: Mapping[str, Any]) -> None:
        self.name = name
        self._running = ExitStack()
        try:
            client: MongoClient[Any] = self._running.enter_context(MongoClient(uri, socketTimeoutMS=_SOCKET_TIMEOUT_MS))
            self.clock = ShardClock(uri)
            self._running.callback(self.clock.close)
            dialect = Dialect.of(client.server_info()["version"])
            oplog = LiveOplog(client, await_ms=_AWAIT_MS)
            self.hub = self._running.enter_context(Hub(oplog, dialect, images=LiveImages(client), **dict(hub_options)))
        except BaseException:
            self._running.close()
            raise
        self.stalled_since: float | None = None
        """Since when it has not answered."""
        self.ask_again_at = 0.0
        self.removed_by: int | None = None
        """A time at which the config servers did not list it any more."""

    def close(self) -> None:
        """Stop its tail and hang up."""
        self._running.close()


class ClusterHub:
    """Change streams over all shards; idle shards are asked how far they are when others wait for them."""

    def __init__(self, uri: str, *, shards: Mapping[str, str] | None = None, **hub_options: Any) -> None:
        """Connect to config servers (or a mongos beside given shards); `shards` are URIs by name, if fixed."""
        self._uri = uri
        self._options = hub_options
        self._lock = threading.Lock()
        self._parts: dict[str, ShardHub] = {}
        self.subscribers: set[MergedSubscription] = set()
        self._listeners: list[Callable[[set[Channel]], None]] = []
        self._news = threading.Event()
        self._stopping = threading.Event()
        self.follows_config = shards is None
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
        self._thread = threading.Thread(target=self._advance_idle_ones, name="shard-clocks", daemon=True)
        self._thread.start()

    def __enter__(self) -> ClusterHub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def shards(self) -> tuple[str, ...]:
        """The names of the parts, the config servers among them."""
        return tuple(self._parts)

    @property
    def reached(self) -> int:
        """The time up to which all shards were read."""
        return min(part.hub.reached for part in tuple(self._parts.values()))

    @property
    def stalled(self) -> dict[str, float]:
        """The shards that do not answer, and for how many seconds."""
        now = time.monotonic()
        return {
            name: now - part.stalled_since
            for name, part in tuple(self._parts.items())
            if part.stalled_since is not None and now - part.stalled_since > _STALLED_AFTER
        }

    @property
    def hubs(self) -> dict[str, Hub]:
        """The hubs of all parts, by name."""
        return {name: part.hub for name, part in tuple(self._parts.items())}

    def held(self) -> dict[str, float]:
        """Give, by shard, for how many seconds it has held back the stream that waits for it longest."""
        longest = dict.fromkeys(self.shards, 0.0)
        for subscriber in tuple(self.subscribers):
            for hold in subscriber.holds:
                longest[hold.shard] = max(hold.held_for, longest.get(hold.shard, 0.0))
        return longest

    def hub(self, shard: str) -> Hub:
        """Give the hub of a shard."""
        return self._parts[shard].hub

    def subscribe(self, spec: StreamSpec, *, latest: int, now: datetime) -> MergedSubscription:
        """Open a stream over all shards."""
        subscription = MergedSubscription(self, spec, latest, now)
        self.subscribers.add(subscription)
        self._news.set()
        return subscription

    def latest(self) -> int:
        """Give a time between everything that was written before this call and all that will be after it.

        That is the newest time that any shard knows; the others are told, so that they write later ones.
        """
        parts = tuple(self._parts.values())
        newest = max((part.clock.now() for part in parts), key=time_of)
        for part in parts:
            part.clock.now(newest)
        return time_of(newest)

    def forget(self, subscription: MergedSubscription) -> None:
        """Let a subscriber go."""
        self.subscribers.discard(subscription)

    def on_news(self, listener: Callable[[set[Channel]], None]) -> None:
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
            if name in self._parts and not any(name in each.shards for each in tuple(self.subscribers)):
                part = self._parts.pop(name)
                threading.Thread(target=part.close, name=f"close-{name}", daemon=True).start()

    def close(self) -> None:
        """Stop all tails."""
        self._stopping.set()
        self._news.set()
        thread = getattr(self, "_thread", None)
        if thread is not None:
            thread.join(timeout=30)
        for part in self._parts.values():
            part.close()

    def _open(self, name: str, uri: str) -> None:
        part = ShardHub(name, uri, self._options)
        part.hub.on_news(self._on_news)
        self._parts[name] = part

    def _on_news(self, channels: set[Channel]) -> None:
        self._news.set()
        for listener in tuple(self._listeners):
            listener(channels)

    # --- idle shards

    def _advance_idle_ones(self) -> None:
        """Whenever something happened on one shard, ask those that have not come so far by themselves."""
        look_at = 0.0
        while not self._stopping.is_set():
            self._news.wait(_SECONDS_WITHOUT_NEWS)
            self._news.clear()
            if self.follows_config and time.monotonic() >= look_at:
                look_at = time.monotonic() + _SECONDS_BETWEEN_LOOKS
                self._look_for_removed_ones()
            if self.subscribers:
                self._advance_round()
            self._stopping.wait(_SECONDS_BETWEEN_ROUNDS)

    def _look_for_removed_ones(self) -> None:
        """Compare with the list: 6.0.5 logs a removal as a plain `applyOps`, which no change stream shows."""
        config = self._parts[CONFIG]
        try:
            listed = {shard.name for shard in config.clock.shards()}
            now = time_of(config.clock.now())
        except PyMongoError as error:
            self._note_silence(config, error)
            return
        for name, part in tuple(self._parts.items()):
            if name != CONFIG and name not in listed and part.removed_by is None:
                structlog.get_logger().info("shard_removed", shard=name)
                part.removed_by = now
                self.retire(name)

    def removed_by(self, name: str) -> int | None:
        """Give a time behind the removal of a shard; None while it belongs to the cluster."""
        part = self._parts.get(name)
        return None if part is None else part.removed_by

    def _advance_round(self) -> None:
        now = time.monotonic()
        parts = [part for part in tuple(self._parts.values()) if part.ask_again_at <= now]
        parts.sort(key=lambda part: part.hub.reached, reverse=True)
        if not parts or parts[0].hub.reached == parts[-1].hub.reached:
            return
        newest = self._newest_time(parts)
        if newest is None:
            return
        moved = [self._advance(part, newest) for part in parts if part.hub.reached < time_of(newest)]
        if any(moved):
            channels = set().union(*(part.hub.all_channels() for part in parts))
            for listener in tuple(self._listeners):
                listener(channels)

    def _newest_time(self, parts: list[ShardHub]) -> Mapping[str, Any] | None:
        """Ask the shard that has come furthest, of those that answer."""
        for part in parts:
            try:
                return part.clock.now()
            except PyMongoError as error:
                self._note_silence(part, error)
        return None

    def _advance(self, part: ShardHub, newest: Mapping[str, Any]) -> bool:
        reached = part.hub.reached
        try:
            idle = part.clock.nothing_until(newest, reached)
        except PyMongoError as error:
            self._note_silence(part, error)
            return False
        if part.stalled_since is not None:
            structlog.get_logger().info("shard_is_back", shard=part.name)
            part.stalled_since = None
        return idle and part.hub.advance(reached, time_of(newest))

    def _note_silence(self, part: ShardHub, error: PyMongoError) -> None:
        part.ask_again_at = time.monotonic() + _SECONDS_BETWEEN_TRIES
        if part.stalled_since is None:
            part.stalled_since = time.monotonic()
            structlog.get_logger().warning("shard_stalled", shard=part.name, error=str(error))
