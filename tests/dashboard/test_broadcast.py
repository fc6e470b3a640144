"""Everybody gets every message, within a bound of bytes; who does not read is dropped and harms nobody."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from prometheus_client.samples import Sample
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from tailrace.dashboard.web.broadcast import Broadcaster, Client, EventStream, encode
from tailrace.errors import ControlRefused
from tailrace.monitor import REGISTRY, DashboardMetrics
from waiting import SECONDS

KILOBYTE = 1024


def dropped(listener: str) -> float:
    return REGISTRY.get_sample_value("tailrace_dashboard_dropped_total", {"listener": listener}) or 0.0


def test_messages_are_server_sent_events() -> None:
    assert encode("state", b'{"a":1}') == b'event: state\ndata: {"a":1}\n\n'


def test_a_client_holds_no_more_bytes_than_its_bound() -> None:
    async def run() -> None:
        client = Client(10 * KILOBYTE)
        assert all(client.put(b"x" * KILOBYTE) for _ in range(10))
        assert client.buffered_bytes == 10 * KILOBYTE
        assert not client.put(b"x")
        assert client.buffered_bytes == 0
        assert await client.next() is None

    asyncio.run(run())


def test_there_are_no_more_clients_than_allowed() -> None:
    async def run() -> None:
        broadcaster = Broadcaster(KILOBYTE, 2, DashboardMetrics("few"))
        broadcaster.join()
        second = broadcaster.join()
        with pytest.raises(ControlRefused, match="2 browsers") as refused:
            broadcaster.join()
        assert refused.value.status == 503
        broadcaster.leave(second)
        broadcaster.join()

    asyncio.run(run())


@asynccontextmanager
async def served(broadcaster: Broadcaster) -> AsyncIterator[int]:
    """The stream of a broadcaster at a real port."""

    async def stream(_: Request) -> EventStream:
        return broadcaster.answer(encode("state", b"{}"))

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(Starlette(routes=[Route("/", stream)]), log_config=None, log_level="critical")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        broadcaster.close()
        server.should_exit = True
        async with asyncio.timeout(SECONDS):
            await task
        listener.close()


async def begin(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=8 * KILOBYTE)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(SECONDS):
        await reader.readuntil(b"data: {}\n\n")
    return reader, writer


async def until(broadcaster: Broadcaster, count: int) -> None:
    async with asyncio.timeout(SECONDS):
        while broadcaster.count != count:
            await asyncio.sleep(0.01)


def test_a_browser_that_does_not_read_is_dropped_and_the_others_get_everything() -> None:
    async def run() -> None:
        broadcaster = Broadcaster(256 * KILOBYTE, 10, DashboardMetrics("slow"))
        async with served(broadcaster) as port:
            reader, writer = await begin(port)
            _, silent = await begin(port)
            assert broadcaster.count == 2
            message = encode("state", b"x" * 64 * KILOBYTE)
            received, sent = 0, 0
            async with asyncio.timeout(SECONDS):
                while broadcaster.count == 2 or sent < 20:
                    broadcaster.publish(message)
                    sent += 1
                    while received < sent * len(message):
                        received += len(await reader.read(1 << 20))
            assert dropped("slow") == 1
            assert broadcaster.count == 1
            assert received >= sent * len(message)
            writer.close()
            silent.close()
            await until(broadcaster, 0)

    asyncio.run(run())


def test_a_browser_that_leaves_is_forgotten() -> None:
    async def run() -> None:
        broadcaster = Broadcaster(256 * KILOBYTE, 10, DashboardMetrics("leaves"))
        async with served(broadcaster) as port:
            _, writer = await begin(port)
            writer.close()
            await until(broadcaster, 0)
        assert dropped("leaves") == 0

    asyncio.run(run())


def test_the_end_of_the_dashboard_ends_the_answers() -> None:
    async def run() -> None:
        broadcaster = Broadcaster(256 * KILOBYTE, 10, DashboardMetrics("ends"))
        async with served(broadcaster) as port:
            reader, writer = await begin(port)
            broadcaster.close()
            async with asyncio.timeout(SECONDS):
                await reader.readuntil(b"0\r\n\r\n")
            with pytest.raises(ControlRefused):
                broadcaster.join()
            writer.close()

    asyncio.run(run())


def test_how_many_follow_is_a_metric() -> None:
    async def run() -> list[Sample]:
        Broadcaster(KILOBYTE, 5, DashboardMetrics("counted")).join()
        return [sample for family in REGISTRY.collect() for sample in family.samples]

    shown = {(sample.name, sample.labels.get("listener")): sample.value for sample in asyncio.run(run())}
    assert shown["tailrace_dashboard_clients", "counted"] == 1
