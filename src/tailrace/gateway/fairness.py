"""Who may use the event loop next.

A client that asks little is served at once. One that asks much takes turns with others like it, one message in each
iteration of the loop, so that an iteration stays short. One that sends nonsense, or very much before it has
authenticated, waits in a lane where one message is worked on at a time and which then rests three times as long as
that took: all such clients together have at most a quarter of the loop, however many they are.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tailrace.errors import BadFrame

if TYPE_CHECKING:
    from tailrace.gateway.connection import Connection

_CREDIT: Final = 100.0
_CREDIT_PER_SECOND: Final = 100.0
_STRANGERS_MESSAGE: Final = 5.0
"""What a message costs of the credit before a login; a login takes some five of them. Later messages cost 1."""
_FAULT: Final = 20.0
_SECONDS_SUSPECT: Final = 10.0
"""How long a client is suspect after it sent nonsense."""
_FAULTS_OF_AN_ADDRESS: Final = 100.0
_FAULTS_PER_SECOND: Final = 10.0
_MOST_ADDRESSES: Final = 10_000
_LONGEST_TURN: Final = 0.01
"""A message in the lane may wait for the upstream, or for events: after this it is the next one's turn all the same."""
_SHORTEST_PAUSE: Final = 0.002
_PAUSE_PER_WORK: Final = 3.0
"""How much longer the lane pauses than it works: on a machine with too much to do, who computes much waits longest."""
_SECONDS_TO_WAIT: Final = 30.0


class TokenBucket:
    """An allowance that fills up at a rate, up to a limit; who spends more owes it, up to another limit."""

    __slots__ = ("_burst", "_level", "_most_owed", "_rate", "_updated_at")

    def __init__(self, rate: float, burst: float, most_owed: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._most_owed = most_owed
        self._level = burst
        self._updated_at = now

    def spend(self, amount: float, now: float) -> float:
        """Take an amount, there or not; give what is left, which is negative when it was not there."""
        filled = self._level + (now - self._updated_at) * self._rate
        self._level = max(min(filled, self._burst) - amount, -self._most_owed)
        self._updated_at = now
        return self._level

    def seconds_until_paid(self) -> float:
        """Give how long it takes to fill up what was spent beyond what was there."""
        return max(0.0, -self._level / self._rate)


class BucketsByAddress:
    """A bucket for each address, as many as are remembered."""

    def __init__(self, rate: float, burst: float, most_owed: float) -> None:
        self._limits = rate, burst, most_owed
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def of(self, address: str) -> TokenBucket:
        """Give the bucket of an address."""
        bucket = self._buckets.get(address)
        if bucket is None:
            bucket = self._buckets[address] = TokenBucket(*self._limits, time.monotonic())
            if len(self._buckets) > _MOST_ADDRESSES:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(address)
        return bucket


class TurnsByIteration:
    """Grants one turn in each iteration of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False

    async def wait(self) -> None:
        """Wait for a turn; the first one of an iteration has it at once."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._grant_next, loop)
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _grant_next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                loop.call_soon(self._grant_next, loop)
                return
        self._is_taken = False


class SlowLane:
    """Lets one client in at a time, and rests for longer than they were in."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[object, asyncio.Future[None]]] = deque()
        self._holder: object | None = None
        self._since = 0.0
        self._is_resting = False
        self._owed = 0.0
        """Rest that is due, and was too short yet to be taken."""
        self._expiry: asyncio.TimerHandle | None = None

    async def enter(self, client: object) -> None:
        """Wait until the lane is free; who waits too long is dropped, for there are too many of them."""
        if self._holder is None and not self._waiting and not self._is_resting:
            self._let_in(client)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((client, turn))
        try:
            async with asyncio.timeout(_SECONDS_TO_WAIT):
                await turn
        except BaseException as error:
            self.leave(client)
            if isinstance(error, TimeoutError):
                raise BadFrame("nonsense, or much before a login, while too many others send the same") from None
            raise

    def leave(self, client: object) -> None:
        """Let the next one in, after a rest; nothing when the client is not in."""
        if self._holder is not client:
            return
        self._holder = None
        if self._expiry is not None:
            self._expiry.cancel()
        self._owed += (time.monotonic() - self._since) * _PAUSE_PER_WORK
        loop = asyncio.get_running_loop()
        self._is_resting = True
        if self._owed < _SHORTEST_PAUSE:
            loop.call_soon(self._end_pause)
        else:
            loop.call_later(self._owed, self._end_pause)
            self._owed = 0.0

    def _end_pause(self) -> None:
        self._is_resting = False
        while self._waiting:
            client, turn = self._waiting.popleft()
            if not turn.done():
                self._let_in(client)
                turn.set_result(None)
                return

    def _let_in(self, client: object) -> None:
        self._holder = client
        self._since = time.monotonic()
        self._expiry = asyncio.get_running_loop().call_later(_LONGEST_TURN, self.leave, client)


class Strangers:
    """Clients that have a connection upstream and have not authenticated: so many, and then the oldest has to go.

    A login takes far less time than it takes others to connect so many clients.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._clients: dict[Connection, None] = {}

    def add(self, client: Connection) -> None:
        """Count a client, and drop the oldest one if they are too many."""
        self._clients[client] = None
        if len(self._clients) > self._limit:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.drop(f"no login, while {self._limit} others have a connection upstream without one")

    def discard(self, client: Connection) -> None:
        """Count a client no longer: it has authenticated, or gone."""
        self._clients.pop(client, None)


class Fairness:
    """What all clients of one gateway share."""

    def __init__(self, on_delayed: Callable[[], None]) -> None:
        """`on_delayed` is called for each message that has to wait in the slow lane."""
        self.turns = TurnsByIteration()
        self.slow_lane = SlowLane()
        self.faults = BucketsByAddress(_FAULTS_PER_SECOND, _FAULTS_OF_AN_ADDRESS, _FAULTS_OF_AN_ADDRESS)
        self.on_delayed = on_delayed


class ClientShare:
    """What one client has of the loop."""

    __slots__ = ("_credit", "_fairness", "_faults_of_address", "_is_in_lane", "_suspect_until", "is_stranger")

    def __init__(self, fairness: Fairness, address: str, *, is_stranger: bool) -> None:
        """`is_stranger` is whether the client has to authenticate and has not yet."""
        self.is_stranger = is_stranger
        self._fairness = fairness
        self._credit = TokenBucket(_CREDIT_PER_SECOND, _CREDIT, _CREDIT, time.monotonic())
        self._faults_of_address = fairness.faults.of(address)
        self._suspect_until = 0.0
        self._is_in_lane = False

    def turn(self) -> Awaitable[None] | None:
        """Give what to wait for before a message of this client is worked on; mostly nothing."""
        now = time.monotonic()
        credit = self._credit.spend(_STRANGERS_MESSAGE if self.is_stranger else 1.0, now)
        is_suspect = self.is_stranger or now < self._suspect_until
        if is_suspect and (credit < 0 or self._faults_of_address.spend(0.0, now) < 0):
            self._fairness.on_delayed()
            self._is_in_lane = True
            return self._fairness.slow_lane.enter(self)
        return self._fairness.turns.wait() if credit < 0 else None

    def end_turn(self) -> None:
        """The message was answered."""
        if self._is_in_lane:
            self._is_in_lane = False
            self._fairness.slow_lane.leave(self)

    def count_fault(self) -> None:
        """Count nonsense that this client has sent."""
        now = time.monotonic()
        self._suspect_until = now + _SECONDS_SUSPECT
        self._credit.spend(_FAULT, now)
        self._faults_of_address.spend(1.0, now)
