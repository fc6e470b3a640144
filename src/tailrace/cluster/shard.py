"""One shard of a cluster, or its config servers: a client, a hub, and a thread that keeps an idle one up to date."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tailrace.cluster.topology import Document, ShardClock
from tailrace.engine.dialect import Dialect
from tailrace.engine.images import ImageStore
from tailrace.hub.hub import Hub
from tailrace.logs import get_logger
from tailrace.oplog.tail import LiveOplog
from tailrace.owned import OwnedThread

_AWAIT_MS: Final = 500
_SOCKET_TIMEOUT_MS: Final = 20_000
_SECONDS_BETWEEN_NOTES: Final = 0.02
"""An idle shard writes at most 50 notes of 80 bytes a second, and only while streams wait for it."""
_SECONDS_TO_READ: Final = 0.005
"""How long the tail has for an entry that is there already, before the shard is made to journal it."""
_SECONDS_BETWEEN_TRIES: Final = 0.5
_STALLED_AFTER: Final = 2.0


class ShardHub:
    """Reads one part of a cluster; when others wait for it and it is idle, it is made to write a note."""

    def __init__(
        self,
        name: str,
        uri: str,
        hub_options: Mapping[str, Any],
        *,
        images: Callable[[MongoClient[Any]], ImageStore],
        newest_time: Callable[[], Document],
        unproved: bool = False,
    ) -> None:
        """Connect; `newest_time` gives a signed cluster time that no shard has passed in what was read of it.

        `unproved`: whoever asks compares what the engine makes of a server that it was never compared with.
        """
        self.name = name
        self.removed_by: int | None = None
        """A time at which the config servers did not list it any more."""
        self._newest_time = newest_time
        self._target_time = 0
        self._unread = 0
        """A time behind which the shard had an entry when it was asked to write one; a majority may not have it."""
        self._waited_for_since: float | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._log = get_logger().bind(shard=name)
        self._running = ExitStack()
        try:
            client: MongoClient[Any] = self._running.enter_context(MongoClient(uri, socketTimeoutMS=_SOCKET_TIMEOUT_MS))
            self.client = client
            self.clock = ShardClock(uri)
            self._running.callback(self.clock.close)
            self.build: Mapping[str, Any] = client.server_info()
            version = self.build["version"]
            dialect = Dialect.nearest(version) if unproved else Dialect.of(version)
            oplog = LiveOplog(client, await_ms=_AWAIT_MS)
            self.hub = self._running.enter_context(Hub(oplog, dialect, images=images(client), **dict(hub_options)))
        except BaseException:
            self._running.close()
            raise
        self._thread = OwnedThread(self._keep_up, name=f"clock-{name}", on_death=self._died)
        self._thread.start()

    def close(self) -> None:
        """Stop its tail and hang up."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout=30)
        self._running.close()

    def advance_to(self, time: int) -> None:
        """Ask it to come up to a time, because others have something from then."""
        if time > self._target_time:
            self._target_time = time
        if self.hub.reached < self._target_time:
            self._wake.set()

    @property
    def stalled_for(self) -> float:
        """For how many seconds others have been waiting for it in vain; 0 when that is not worth a word."""
        since = self._waited_for_since
        waited = 0.0 if since is None else time.monotonic() - since
        return waited if waited > _STALLED_AFTER else 0.0

    def _keep_up(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            while (target_time := self._target_time) > self.hub.reached and not self._stopping.is_set():
                self._come_up_to(target_time)

    def _died(self, _: BaseException) -> float:
        """Go on at once with what others wait for."""
        self._wake.set()
        return _SECONDS_BETWEEN_TRIES

    def _come_up_to(self, target_time: int) -> None:
        """Have notes written until the tail has come to a time; say when that takes too long."""
        is_stalled = False
        self._waited_for_since = time.monotonic()
        while self.hub.reached < target_time and not self._stopping.is_set():
            if self.stalled_for and not is_stalled:
                is_stalled = True
                self._log.warning("shard_stalled", waited_seconds=round(self.stalled_for, 1))
            self._stopping.wait(self._write_note())
        self._waited_for_since = None
        if is_stalled:
            self._log.info("shard_is_back")

    def _write_note(self) -> float:
        """Have a note written that the tail will come to; give for how long to wait before the next one."""
        target_time, is_late = self._target_time, self.hub.reached < self._unread
        try:
            is_written = self.clock.write_note(self._newest_time(), target_time, in_any_case=is_late)
        except PyMongoError as error:
            self._log.debug("shard_is_silent", error=str(error))
            return _SECONDS_BETWEEN_TRIES
        self._unread = 0 if is_written else target_time
        return _SECONDS_BETWEEN_NOTES if is_written else _SECONDS_TO_READ
