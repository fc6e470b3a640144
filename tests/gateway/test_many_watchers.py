"""Hundreds of watchers while a writer writes: each gets exactly its events, and memory stays flat."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from gateway.running_gateway import RunningGateway
from tailrace.stand import ReplicaSet
from waiting import SECONDS

COLLECTIONS = 10


def resident_bytes() -> int:
    """The memory of this process, gateway and watchers together."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("watchers", "seconds"), [(40, 3), pytest.param(500, 60, marks=pytest.mark.long)], ids=["some", "many"]
)
def test_each_watcher_gets_exactly_its_events(
    start_gateway: Callable[..., RunningGateway],
    mongodb: ReplicaSet,
    database: Database[dict[str, Any]],
    watchers: int,
    seconds: float,
) -> None:
    """`make cluster` runs it with 500 watchers for a minute."""
    for number in range(COLLECTIONS):
        database.create_collection(f"c{number}")
    gateway = start_gateway(mongodb.uri)
    seen: list[list[int]] = [[] for _ in range(watchers)]
    written: list[list[int]] = [[] for _ in range(COLLECTIONS)]
    done = threading.Event()
    with gateway.client(maxPoolSize=watchers + 10, document_class=RawBSONDocument) as client:
        streams = [client[database.name][f"c{number % COLLECTIONS}"].watch() for number in range(watchers)]

        def read(number: int) -> None:
            stream, mine = streams[number], seen[number]
            while not (done.is_set() and len(mine) >= len(written[number % COLLECTIONS])):
                if (event := stream.try_next()) is not None:
                    mine.append(event["documentKey"]["_id"])

        threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(watchers)]
        for thread in threads:
            thread.start()
        deadline, serial, sizes = time.monotonic() + seconds, 0, []
        while time.monotonic() < deadline:
            keys = list(range(serial, serial + 20))
            database[f"c{serial // 20 % COLLECTIONS}"].insert_many([{"_id": key} for key in keys])
            written[serial // 20 % COLLECTIONS] += keys
            serial += 20
            sizes.append(resident_bytes())
        done.set()
        for thread in threads:
            thread.join(SECONDS)
        for stream in streams:
            stream.close()
    assert [len(mine) for mine in seen] == [len(written[number % COLLECTIONS]) for number in range(watchers)]
    assert all(mine == written[number % COLLECTIONS] for number, mine in enumerate(seen))
    assert gateway.hub.counts.scans == 0
    half = len(sizes) // 2  # of bytes: the watchers, who are in this process too, keep events as they came
    assert max(sizes[half:]) < max(sizes[:half]) + 200 * 1024 * 1024
