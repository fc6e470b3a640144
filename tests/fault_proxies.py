"""A TCP proxy before any server, whose network is as bad as a test wants it to be at this moment.

Two links run through each connection, one to the server and one to the client. A link never loses, changes or
reorders bytes, because TCP does not: it holds them back (delay, throttle, black hole) or the connection ends
(cut). It holds at most a fixed number of bytes; after that its sender has to wait.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import socket
import struct
import sys
import termios
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

from tailrace.owned import OwnedThread
from tailrace.owned.closeable import Closeable
from tailrace.stand.ports import ReservedPort, reserve_port

CHUNK_BYTES = 16 * 1024
CHUNKS_IN_FLIGHT = 64
"""Together the bound: one link holds at most 1 MiB."""

_SECONDS_TO_SWITCH = 30
_SECONDS_TO_DELIVER = 5
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_DELIVER_ON_CLOSE = struct.pack("ii", 0, 0)

T = TypeVar("T")


class Direction(Enum):
    """Which way bytes go."""

    TO_SERVER = "to-server"
    TO_CLIENT = "to-client"


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the network is like now."""

    refuse: bool = False
    black_hole: bool = False
    delay: float = 0.0
    bytes_per_second: float = math.inf


class FaultProxy(Closeable):
    """A proxy on a loopback port of its own, whose faults are switched while it runs.

    Each switch has taken effect when its method returns; faults add up until `heal`.
    """

    def __init__(self, target_port: int | None) -> None:
        self._port: ReservedPort = reserve_port()
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._network = _Network()
        self._listener: asyncio.Task[None] | None = None
        self._thread = OwnedThread(self._loop.run_forever, name="fault-proxy", on_death=lambda _: 0.0)

    @classmethod
    def start(cls, target_port: int | None = None) -> FaultProxy:
        """Start a proxy before a loopback port; without one, `aim` has to name it before the first client."""
        proxy = cls(target_port)
        proxy._thread.start()
        proxy._switch(proxy._listen)
        return proxy

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self._port.number

    @property
    def address(self) -> str:
        """`host:port`, for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._network.connections)

    def aim(self, target_port: int) -> None:
        """Lead new connections to another loopback port."""
        self._target_port = target_port

    def cut(self) -> None:
        """Reset every connection, on both sides; new ones are welcome."""
        self._switch(self._network.cut)

    def cut_after(self, count: int, direction: Direction = Direction.TO_CLIENT) -> None:
        """Let exactly `count` more bytes pass in a direction, over all connections, then `cut`, once."""

        async def arm() -> None:
            self._network.bytes_left[direction] = count

        self._switch(arm)

    def refuse(self) -> None:
        """Refuse new connections, as a machine without the server does; those that are open go on."""
        self._change(refuse=True)

    def delay(self, seconds: float) -> None:
        """Add latency to each direction, so twice as much to a round trip, with up to 1 MiB on its way."""
        self._change(delay=seconds)

    def throttle(self, bytes_per_second: float) -> None:
        """Limit each direction, all connections together."""
        self._change(bytes_per_second=bytes_per_second)

    def black_hole(self) -> None:
        """Accept everything and forward nothing, not even the end of a connection.

        As after a pulled cable: peers see a connection that is open and silent. What was sent meanwhile
        arrives after `heal`, as TCP would send it again, even if its sender has given up.
        """
        self._change(black_hole=True)

    def heal(self) -> None:
        """Be a good network again: everything held back arrives, new connections are accepted."""

        async def heal() -> None:
            self._network.bytes_left.clear()
            await self._apply(Conditions())

        self._switch(heal)

    def close(self) -> None:
        """Reset every connection and give the port back; a second call does nothing."""
        if self._loop.is_closed():
            return
        self._switch(self._stop_listening)
        self._switch(self._network.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._port.release()

    def _change(self, **conditions: Any) -> None:
        async def change() -> None:
            await self._apply(replace(self._network.conditions, **conditions))

        self._switch(change)

    def _switch(self, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a step on the proxy's own thread and wait until it is done."""
        return asyncio.run_coroutine_threadsafe(step(), self._loop).result(_SECONDS_TO_SWITCH)

    async def _apply(self, conditions: Conditions) -> None:
        self._network.set(conditions)
        if conditions.refuse:
            await self._stop_listening()
        elif self._listener is None:
            await self._listen()

    async def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self._listener = asyncio.create_task(self._accept(listener))

    async def _stop_listening(self) -> None:
        """Close the listening socket, so that the kernel refuses for us."""
        if self._listener:
            await _cancel(self._listener)
            self._listener = None

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                client, _ = await asyncio.get_running_loop().sock_accept(listener)
                self._network.serve(client, self._target_port)


class _Network:
    """All connections of one proxy and what they share. Lives on the proxy's thread."""

    def __init__(self) -> None:
        self.conditions = Conditions()
        self.connections: set[asyncio.Task[None]] = set()
        self.bytes_left: dict[Direction, int] = {}
        self._changed = asyncio.Event()
        self._free_at = dict.fromkeys(Direction, 0.0)
        self._ordered_cut: asyncio.Task[None] | None = None

    def set(self, conditions: Conditions) -> None:
        """Change the conditions and wake everything that waits under the old ones."""
        self.conditions = conditions
        self._free_at = dict.fromkeys(Direction, 0.0)
        self._changed.set()
        self._changed = asyncio.Event()

    def serve(self, client: socket.socket, target_port: int | None) -> None:
        """Carry a new connection until it ends."""
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        task = asyncio.create_task(_relay(self, client, target_port))
        self.connections.add(task)
        task.add_done_callback(self.connections.discard)
        task.add_done_callback(lambda _: client.close())  # when it was cut before it began

    async def cut(self) -> None:
        """End all connections; each resets its two sockets when it is cancelled."""
        await _cancel(*self.connections)

    async def close(self) -> None:
        """End all connections and whatever still waits to end them."""
        if self._ordered_cut:
            await _cancel(self._ordered_cut)
        await self.cut()

    def cut_when_delivered(self, target: socket.socket) -> None:
        """Begin the cut that `bytes_left` ordered, once the last byte before it has arrived."""

        async def cut() -> None:
            await _delivered(target)
            self.bytes_left = {way: left for way, left in self.bytes_left.items() if left}
            await self.cut()

        if self._ordered_cut is None or self._ordered_cut.done():
            self._ordered_cut = asyncio.create_task(cut())

    async def out_of_black_hole(self) -> None:
        """Wait until bytes may pass at all."""
        while self.conditions.black_hole:
            await self._changed.wait()

    async def travelled(self, sent_at: float) -> None:
        """Wait until a chunk that was sent at this time has come through."""
        while (left := self._seconds_left(sent_at)) > 0:
            await self._change_within(left)

    async def turn(self, direction: Direction, count: int) -> None:
        """Wait until the throttle lets these bytes through; each direction is one queue for all."""
        rate = self.conditions.bytes_per_second
        if rate == math.inf:
            return
        now = asyncio.get_running_loop().time()
        begins = max(now, self._free_at[direction])
        self._free_at[direction] = begins + count / rate
        await self._change_within(begins + count / rate - now)

    def passes(self, direction: Direction, count: int) -> int:
        """How many of these bytes pass before the cut that was ordered; counts them."""
        left = self.bytes_left.get(direction)
        if left is None:
            return count
        passing = min(left, count)
        self.bytes_left[direction] = left - passing
        return passing

    def piece(self) -> int:
        """How many bytes to send at once: under a throttle, what passes in a twentieth of a second."""
        return int(max(1.0, min(CHUNK_BYTES, self.conditions.bytes_per_second / 20)))

    def _seconds_left(self, sent_at: float) -> float:
        if self.conditions.black_hole:
            return math.inf
        return sent_at + self.conditions.delay - asyncio.get_running_loop().time()

    async def _change_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await self._changed.wait()
        except TimeoutError:
            pass


@dataclass(slots=True)
class _Link:
    """One direction of one connection: what was read and waits to be written."""

    network: _Network
    direction: Direction
    source: socket.socket
    target: socket.socket
    chunks: asyncio.Queue[tuple[float, bytes]] = field(default_factory=lambda: asyncio.Queue(CHUNKS_IN_FLIGHT))

    async def read(self) -> None:
        """Take bytes from the source as fast as there is room; an empty chunk is its end."""
        loop = asyncio.get_running_loop()
        while True:
            await self.network.out_of_black_hole()
            try:
                data = await loop.sock_recv(self.source, CHUNK_BYTES)
            except OSError:
                await self.network.out_of_black_hole()  # a reset does not get through either
                raise
            await self.chunks.put((loop.time(), data))
            if not data:
                return

    async def write(self) -> None:
        """Give each chunk to the target when its time has come, then the end."""
        while True:
            sent_at, data = await self.chunks.get()
            await self.network.travelled(sent_at)
            if not data:
                self.target.shutdown(socket.SHUT_WR)
                return
            await self._deliver(memoryview(data))

    async def _deliver(self, data: memoryview) -> None:
        loop = asyncio.get_running_loop()
        while data:
            piece = data[: self.network.piece()]
            await self.network.turn(self.direction, len(piece))
            await self.network.out_of_black_hole()
            passing = self.network.passes(self.direction, len(piece))
            await loop.sock_sendall(self.target, piece[:passing])
            if self.network.bytes_left.get(self.direction) == 0:
                self.network.cut_when_delivered(self.target)
                await asyncio.Event().wait()  # for the cut, which ends this very task
            data = data[len(piece) :]


async def _relay(network: _Network, client: socket.socket, target_port: int | None) -> None:
    """Carry one connection both ways. Any error on one side resets the other, as the real server would."""
    with client, socket.socket() as server:
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        try:
            await network.out_of_black_hole()
            await asyncio.get_running_loop().sock_connect(server, ("127.0.0.1", target_port or 0))
            await _exchange(network, client, server)
            for end in (client, server):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DELIVER_ON_CLOSE)
        except* OSError:
            pass


async def _exchange(network: _Network, client: socket.socket, server: socket.socket) -> None:
    """Run both links until both have ended."""
    links = (
        _Link(network, Direction.TO_SERVER, client, server),
        _Link(network, Direction.TO_CLIENT, server, client),
    )
    async with asyncio.TaskGroup() as group:
        for link in links:
            group.create_task(link.read())
            group.create_task(link.write())


async def _delivered(target: socket.socket) -> None:
    """Wait until the peer's kernel has every byte, because a reset drops what is still on its way."""
    deadline = asyncio.get_running_loop().time() + _SECONDS_TO_DELIVER
    while asyncio.get_running_loop().time() < deadline:
        on_the_way = fcntl.ioctl(target, termios.TIOCOUTQ, bytes(4))
        if not int.from_bytes(on_the_way, sys.byteorder):
            return
        await asyncio.sleep(0.001)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks, all at once, and wait for their end, whatever that is."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
