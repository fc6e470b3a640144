"""Many watchers at one gateway for minutes: each gets every event in order and once, and memory stays flat."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from bench.accounting import cpu_seconds
from bench.contestant import LineProcess
from bench.drain_jobs import start_gateway

from load.page import PAGE, RESULTS, Load, page, read_results
from tailrace.stand import ReplicaSet

MINUTES = float(os.environ.get("MINUTES", "10"))
SECONDS_TO_OPEN = 600
TIMES_TO_CATCH_UP = 3
"""A writer at full speed may be faster than its watchers: they are given so many times as long."""
MOST_GROWTH_MB = 200
COLLECTIONS = 10


@contextmanager
def gateway_at(uri: str) -> Iterator[tuple[int, int]]:
    """Give the process and the port of a `tailrace serve`."""
    process, port = start_gateway(uri)
    try:
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(60)


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Watched:
    """The watchers, asked for what they have."""

    def __init__(self, players: LineProcess) -> None:
        self._players = players

    def has(self) -> dict[str, Any]:
        self._players.tell("count")
        found: dict[str, Any] = json.loads(self._players.wait_for("has", 120))
        assert not found["problems"], found["problems"]
        return found


def write(database: Any, written: list[int], seconds: float, per_second: float, sample: Any) -> None:
    """Insert numbers into the collections in turns, at full speed (0) or so many a second."""
    began, number, next_sample = time.monotonic(), 0, 0.0
    while (now := time.monotonic() - began) < seconds:
        chosen = number % len(written)
        database[f"c{chosen}"].insert_one({"_id": written[chosen], "padding": "x" * 200})
        written[chosen] += 1
        number += 1
        if now >= next_sample:
            sample()
            next_sample = now + 1.0
        if per_second:
            time.sleep(max(0.0, began + number / per_second - time.monotonic()))


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(
    ("watchers", "collections", "per_second"),
    [(500, COLLECTIONS, 0.0), (10_000, 1, 1.0)],
    ids=["500 beside a writer at full speed", "10000 beside a steady one"],
)
def test_every_watcher_gets_everything(
    start_mongodb: Any, tmp_path: Path, watchers: int, collections: int, per_second: float
) -> None:
    """`make load MINUTES=10` runs both and makes docs/load.md."""
    mongodb: ReplicaSet = start_mongodb()
    with mongodb.client() as client, gateway_at(mongodb.uri) as (pid, port):
        for number in range(collections):
            client.load.create_collection(f"c{number}")
        command = [sys.executable, "-m", "load.players", str(port), "load", str(collections), str(watchers)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[up]) for up in (1, 2))}
        players = LineProcess(command, tmp_path / "players.log", environment)
        try:
            players.wait_for("open", SECONDS_TO_OPEN)
            figures = measure(client.load, Watched(players), pid, watchers, collections, per_second)
        finally:
            players.close()
    with Path(os.environ.get("RESULTS", RESULTS)).open("a") as file:
        file.write(json.dumps(asdict(figures)) + "\n")
    print(figures)
    assert figures.growth_mb < MOST_GROWTH_MB, figures


def measure(database: Any, watched: Watched, gateway: int, watchers: int, collections: int, per_second: float) -> Load:
    written, sizes = [0] * collections, [resident_mb(gateway)]
    used, began = cpu_seconds(gateway), time.monotonic()
    write(database, written, 60 * MINUTES, per_second, lambda: sizes.append(resident_mb(gateway)))
    ended = time.monotonic()
    meanwhile = watched.has()["delivered"]
    deadline = ended + TIMES_TO_CATCH_UP * 60 * MINUTES + 60
    while (found := watched.has())["least"] != written:
        assert time.monotonic() < deadline, f"not everything came: {found}, written {written}"
        sizes.append(resident_mb(gateway))
        time.sleep(0.5)
    assert found["most"] == written
    half = len(sizes) // 2
    return Load(
        watchers=watchers,
        inserts=sum(written),
        minutes=round((ended - began) / 60, 1),
        delivered=found["delivered"],
        delivered_while_writing=meanwhile,
        seconds_behind=round(time.monotonic() - ended, 1),
        gateway_cpu_seconds=round(cpu_seconds(gateway) - used, 1),
        gateway_mb=round(max(sizes)),
        growth_mb=round(max(sizes[half:]) - max(sizes[:half])),
    )


@pytest.mark.skipif(not RESULTS.exists(), reason="no results are kept yet; make load")
def test_the_page_is_made_of_the_results() -> None:
    assert PAGE.read_text() == page(read_results())
