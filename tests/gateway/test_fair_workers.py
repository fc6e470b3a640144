"""Threads that users share: each gets a turn, however much the others want."""

from __future__ import annotations

import asyncio
import threading

from tailrace.gateway.fair_workers import FairWorkers

_PATIENCE = 30


def test_nobody_has_more_than_half_and_all_come_in_turn() -> None:
    begun: list[str] = []
    gate = threading.Event()

    def work(name: str) -> str:
        begun.append(name)
        assert gate.wait(_PATIENCE)
        return name

    async def run() -> None:
        workers = FairWorkers(4, "test")
        tasks = [asyncio.create_task(workers.run("eve", work, f"eve {number}")) for number in range(6)]
        await asyncio.sleep(0.1)
        assert begun == ["eve 0", "eve 1"]
        tasks += [asyncio.create_task(workers.run(name, work, name)) for name in ("mallory 0", "ben", "ann")]
        await asyncio.sleep(0.1)
        assert begun[2:] == ["mallory 0", "ben"]
        gate.set()
        assert await asyncio.gather(*tasks) == [f"eve {number}" for number in range(6)] + ["mallory 0", "ben", "ann"]
        assert begun.index("ann") < begun.index("eve 4")
        workers.close(cancel=False)

    asyncio.run(run())


def test_a_turn_that_nobody_waits_for_is_given_to_the_next() -> None:
    gate = threading.Event()

    async def run() -> None:
        workers = FairWorkers(2, "test")
        first, second, third = (asyncio.create_task(workers.run("eve", gate.wait, _PATIENCE)) for _ in range(3))
        await asyncio.sleep(0.1)
        second.cancel()
        first.cancel()  # its thread works on, and is busy until it has ended
        await asyncio.sleep(0.1)
        assert not third.done()
        assert await workers.run("ben", lambda: "served") == "served"
        gate.set()
        assert await third
        workers.close(cancel=True)

    asyncio.run(run())


def test_work_that_fails_frees_its_thread_and_a_closed_pool_lets_nobody_wait() -> None:
    gate = threading.Event()

    async def run() -> None:
        workers = FairWorkers(1, "test")
        failed = await asyncio.gather(*(workers.run("eve", int, "x") for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in failed] == [ValueError] * 3
        tasks = [asyncio.create_task(workers.run("eve", gate.wait, _PATIENCE)) for _ in range(3)]
        await asyncio.sleep(0.1)
        workers.close(cancel=True)
        gate.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in ended[1:]] == [asyncio.CancelledError] * 2

    asyncio.run(run())
