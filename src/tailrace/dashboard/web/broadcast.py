"""Server-sent events to any number of browsers, each with a bounded number of bytes that may wait for it.

A message is encoded once for all. A browser that does not read is dropped when its bytes are used up; it connects
again by itself and gets the whole state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus

from starlette.types import Receive, Scope, Send

from tailrace.errors import ControlRefused
from tailrace.monitor import DashboardMetrics

_SECONDS_BETWEEN_SIGNS = 15.0
"""A comment is sent when nothing else is, so that proxies keep the connection open."""
_SECONDS_TO_END = 0.5


def encode(event: str, data: bytes) -> bytes:
    """Give a message of the stream; `data` is JSON in one line."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), data)


class Client:
    """One browser: what waits for it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[bytes] = deque()
        self.buffered_bytes = 0
        """How much waits."""
        self._data_available = asyncio.Event()
        self._ended = asyncio.Event()

    def put(self, message: bytes) -> bool:
        """Let a message wait; False when there is no room, and the client is dropped."""
        if self.buffered_bytes + len(message) > self._limit:
            self.drop()
            return False
        self._waiting.append(message)
        self.buffered_bytes += len(message)
        self._data_available.set()
        return True

    def drop(self) -> None:
        """Forget everything, and end the connection."""
        self._waiting.clear()
        self.buffered_bytes = 0
        self._ended.set()
        self._data_available.set()

    async def ended(self) -> None:
        """Wait until the client is dropped."""
        await self._ended.wait()

    async def next(self) -> bytes | None:
        """Wait for a message; None when it is time to end."""
        while not self._waiting:
            if self._ended.is_set():
                return None
            self._data_available.clear()
            try:
                async with asyncio.timeout(_SECONDS_BETWEEN_SIGNS):
                    await self._data_available.wait()
            except TimeoutError:
                return b": still here\n\n"
        message = self._waiting.popleft()
        self.buffered_bytes -= len(message)
        return message


class Broadcaster:
    """Everybody who listens. Used from the event loop's thread alone."""

    def __init__(self, limit_bytes: int, most_clients: int, metrics: DashboardMetrics) -> None:
        self._limit = limit_bytes
        self._metrics = metrics
        self._most = most_clients
        self._clients: set[Client] = set()
        self._is_closed = False

    @property
    def count(self) -> int:
        """How many listen."""
        return len(self._clients)

    def publish(self, *messages: bytes) -> None:
        """Send messages to all; whoever has no room for them is dropped."""
        for client in tuple(self._clients):
            if not all(client.put(message) for message in messages):
                self.leave(client)
                self._metrics.dropped()

    def join(self) -> Client:
        """Take in a client, unless there are too many."""
        if self._is_closed or len(self._clients) >= self._most:
            hint = "Close another tab, or raise dashboard.max_clients."
            status = HTTPStatus.SERVICE_UNAVAILABLE
            raise ControlRefused(f"{len(self._clients)} browsers listen already", status=status, hint=hint)
        client = Client(self._limit)
        self._clients.add(client)
        self._metrics.clients(len(self._clients))
        return client

    def close(self) -> None:
        """End all connections."""
        self._is_closed = True
        for client in tuple(self._clients):
            client.drop()

    def leave(self, client: Client) -> None:
        """Forget a client that has gone."""
        self._clients.discard(client)
        self._metrics.clients(len(self._clients))

    def answer(self, first: bytes) -> EventStream:
        """Give the response for a browser that begins to listen; `first` is what it gets at once."""
        client = self.join()
        client.put(first)
        return EventStream(self, client)


class EventStream:
    """A response that lasts: the messages of one client."""

    def __init__(self, broadcaster: Broadcaster, client: Client) -> None:
        self._broadcaster = broadcaster
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the browser goes, is dropped, or the dashboard ends."""
        sender = asyncio.create_task(self._send_all(send))
        others = [asyncio.create_task(_gone(receive)), asyncio.create_task(self._client.ended())]
        try:
            await asyncio.wait({sender, *others}, return_when=asyncio.FIRST_COMPLETED)
            self._client.drop()
            # Whoever still reads sees the end of the answer; whoever does not is cut off.
            await asyncio.wait({sender}, timeout=_SECONDS_TO_END)
        finally:
            self._broadcaster.leave(self._client)
            for task in (sender, *others):
                task.cancel()
            await asyncio.gather(sender, *others, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while (message := await self._client.next()) is not None:
            await send({"type": "http.response.body", "body": message, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
