"""What it costs to turn an event into a record: every format beside `bson.json_util`, on the same events.

    python bench/formats.py [--events 20000] [--rounds 5]

Times are of the process's own CPU, and the rivals take turns; only the ratios mean something.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import bson
from bson import Int64, ObjectId, Timestamp, json_util

from tailrace.capture.formats import make_format
from tailrace.capture.formats.json import JsonFormat
from tailrace.capture.formats.keys import KeyRule


def make_event(number: int) -> bytes:
    key = ObjectId()
    token = f"8265F0A1B2{number:08X}2B022C0100296E5A1004{os.urandom(16).hex()}46645F69640064{key}0004".upper()
    document: dict[str, Any] = {
        "_id": key,
        "user_id": random.randrange(10**6),
        "total": Int64(random.randrange(10**9)),
        "price": random.random() * 100,
        "status": "shipped",
        "tags": ["new", "gift"],
        "address": {"street": "Main street 12", "city": "Springfield", "zip": "12345"},
        "note": "x" * 80,
    }
    event = {"_id": {"_data": token}, "operationType": "insert", "clusterTime": Timestamp(0x65F0A1B2, number)}
    return bson.encode(
        {**event, "fullDocument": document, "ns": {"db": "shop", "coll": "orders"}, "documentKey": {"_id": key}}
    )


def with_json_util(event: bytes) -> tuple[bytes, bytes]:
    decoded = bson.decode(event)
    return json_util.dumps(decoded["documentKey"]).encode(), json_util.dumps(decoded).encode()


def seconds_for(write: Callable[[bytes], Any], events: Iterable[bytes]) -> float:
    gc.collect()
    began = time.process_time()
    for event in events:
        write(event)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    events = [make_event(number) for number in range(options.events)]
    rivals: dict[str, Callable[[bytes], Any]] = {
        "bson.json_util": with_json_util,
        "json": make_format("json").records,
        "json, the general way": JsonFormat(KeyRule()).records,  # what a transaction's events take
        "canonical": make_format("canonical").records,
        "bson": make_format("bson").records,
        "flat": make_format("flat", fields=["user_id", "total", "status"]).records,
        "debezium": make_format("debezium").records,
    }
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(options.rounds):
        for name, write in rivals.items():
            times[name].append(seconds_for(write, events))
    base = median(times["bson.json_util"])
    print(f"{'':24}{'us/event':>10}{'times as fast as bson.json_util':>34}")
    for name, taken in times.items():
        print(f"{name:24}{median(taken) / options.events * 1e6:10.1f}{base / median(taken):34.1f}")


if __name__ == "__main__":
    main()
