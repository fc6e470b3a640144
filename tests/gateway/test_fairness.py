"""Clients that ask much, or send nonsense, wait for those who do not."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import bson
import pytest

from gateway.running_gateway import RunningGateway
from gateway.wire_client import WireClient
from tailrace.errors import BadFrame
from tailrace.gateway import fairness
from tailrace.gateway.fairness import ClientShare, Fairness, SlowLane, Strangers, TokenBucket, TurnsByIteration
from tailrace.stand import ReplicaSet
from waiting import SECONDS

PING = {"ping": 1, "$db": "admin"}


def _frames(command: dict[str, Any], count: int) -> bytes:
    body = b"\x00" * 5 + bson.encode(command)
    return b"".join(struct.pack("<iiii", 16 + len(body), number, 0, 2013) + body for number in range(count))


# --- the parts


def test_a_bucket_fills_up_to_its_limit_and_owes_up_to_another() -> None:
    bucket = TokenBucket(rate=10, burst=20, most_owed=5, now=0.0)
    assert bucket.spend(15, 0.0) == 5
    assert bucket.spend(0, 0.5) == 10
    assert bucket.spend(0, 100.0) == 20
    assert bucket.spend(22, 100.0) == -2
    assert bucket.seconds_until_paid() == pytest.approx(0.2)
    assert bucket.spend(1_000, 100.0) == -5


def test_those_who_ask_much_have_one_turn_in_each_iteration() -> None:
    async def scenario() -> list[int]:
        turns, iteration, granted = TurnsByIteration(), 0, []
        loop = asyncio.get_running_loop()

        def count() -> None:
            nonlocal iteration
            iteration += 1
            loop.call_soon(count)

        async def take() -> None:
            await turns.wait()
            granted.append(iteration)

        count()
        tasks = [asyncio.create_task(take()) for _ in range(5)]
        tasks[3].cancel()
        await asyncio.wait(tasks)
        return granted

    granted = asyncio.run(scenario())
    assert len(granted) == 4
    assert len(set(granted)) == 4


def test_one_is_in_the_slow_lane_at_a_time_and_nobody_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "_LONGEST_TURN", 0.05)

    async def scenario() -> None:
        lane, order = SlowLane(), []

        async def client(name: str, done: asyncio.Event | None = None) -> None:
            await lane.enter(name)
            order.append(name)
            if done is not None:
                await done.wait()
            lane.leave(name)

        forever, done = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(client("first", done))
        await asyncio.sleep(0)
        others = [asyncio.create_task(client(name)) for name in ("gone", "second")]
        await asyncio.sleep(0)
        assert order == ["first"]
        others[0].cancel()
        done.set()
        await asyncio.wait_for(others[1], SECONDS)
        assert order == ["first", "second"]
        keeper = asyncio.create_task(client("keeps it", forever))
        await asyncio.wait_for(client("next"), SECONDS)
        assert order[2:] == ["keeps it", "next"]
        forever.set()
        await asyncio.wait([first, keeper])

    asyncio.run(scenario())


def test_who_waits_too_long_in_the_slow_lane_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "_SECONDS_TO_WAIT", 0.01)
    monkeypatch.setattr(fairness, "_LONGEST_TURN", 60.0)

    async def scenario() -> None:
        lane = SlowLane()
        await lane.enter("first")
        with pytest.raises(BadFrame, match="too many others"):
            await lane.enter("second")
        lane.leave("first")
        monkeypatch.setattr(fairness, "_SECONDS_TO_WAIT", 20.0)
        await lane.enter("third")

    asyncio.run(scenario())


def test_who_must_wait_is_decided_by_what_they_send() -> None:
    async def scenario() -> None:
        shared = Fairness(lambda: None)
        known = ClientShare(shared, "10.0.0.1", is_stranger=False)
        assert all(known.turn() is None for _ in range(50))
        stranger = ClientShare(shared, "10.0.0.1", is_stranger=True)
        assert all(stranger.turn() is None for _ in range(10))  # a login takes fewer
        for _ in range(200):
            stranger.count_fault()
        late = ClientShare(shared, "10.0.0.1", is_stranger=True)
        for waiting in (stranger.turn(), late.turn()):
            assert asyncio.iscoroutine(waiting)
            waiting.close()
        assert known.turn() is None  # the same address, and nothing wrong with it
        elsewhere = ClientShare(shared, "10.0.0.2", is_stranger=True)
        assert elsewhere.turn() is None

    asyncio.run(scenario())


def test_the_oldest_stranger_has_to_go() -> None:
    class Client:
        dropped = ""

        def drop(self, reason: str) -> None:
            self.dropped = reason

    first, second, third, fourth = (Client() for _ in range(4))
    strangers = Strangers(2)
    strangers.add(first)
    strangers.add(second)
    strangers.discard(first)
    strangers.add(third)
    assert not second.dropped
    strangers.add(fourth)
    assert "no login" in second.dropped
    assert not any(client.dropped for client in (first, third, fourth))


# --- a gateway


def test_many_messages_in_one_packet_are_not_answered_in_one_go(gateway: RunningGateway) -> None:
    count = 5_000
    with WireClient(gateway.port) as flooder, WireClient(gateway.port) as other:
        for client in (flooder, other):
            assert client.command(PING)["ok"] == 1
        before = gateway.gateway.counts.commands
        sender = threading.Thread(target=flooder.socket.sendall, args=(_frames({"nonsense": 1}, count),), daemon=True)
        sender.start()
        while gateway.gateway.counts.commands == before:
            time.sleep(0.001)
        assert other.command(PING)["ok"] == 1
        assert gateway.gateway.counts.commands - before < count
        assert gateway.gateway.counts.delayed > 0


def test_an_address_that_connects_too_often_waits_and_is_refused_while_others_are_served(
    mongodb: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    options = {"address": "0.0.0.0", "allow_open": True, "accepts_per_second": 0.5}
    gateway = start_gateway(mongodb.uri, **options)
    with ExitStack() as opened:
        clients = [opened.enter_context(WireClient(gateway.port)) for _ in range(5)]
        assert all(client.command(PING)["ok"] == 1 for client in clients)
        late = [opened.enter_context(WireClient(gateway.port)) for _ in range(20)]
        with pytest.raises(ConnectionError):
            late[-1].command(PING)
        assert gateway.gateway.counts.refused > 0
        other = opened.enter_context(WireClient(gateway.port, source="127.0.0.2"))
        assert other.command(PING)["ok"] == 1
        assert late[0].command(PING)["ok"] == 1  # it only had to wait


def test_those_who_do_not_log_in_do_not_fill_up_the_upstream(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    gateway = start_gateway(secured.uri, strangers=3)
    with ExitStack() as opened:
        known = opened.enter_context(WireClient(gateway.port))
        known.authenticate("ann", "secret")
        strangers = [opened.enter_context(WireClient(gateway.port)) for _ in range(4)]
        assert all(client.command(PING)["ok"] == 1 for client in strangers)
        with pytest.raises(ConnectionError):
            strangers[0].command(PING)
        assert strangers[1].command(PING)["ok"] == 1
        assert known.command(PING)["ok"] == 1
