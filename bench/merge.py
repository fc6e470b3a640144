"""The merge of three shards on pre-loaded events, beside `heapq.merge` on the same ones.

python bench/merge.py [--events 300000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Callable
from operator import attrgetter
from statistics import median

import bson
from bson import Timestamp

from tailrace.engine import Event
from tailrace.router import Merge
from tailrace.token import ResumeToken


def load(events: int) -> list[list[Event]]:
    """Events of three shards, spread by turns, about 300 bytes each."""
    shards: list[list[Event]] = [[], [], []]
    for number in range(events):
        token = ResumeToken.high_water_mark(Timestamp(1_700_000_000 + number // 1000, number % 1000 + 1))
        raw = bson.encode({"_id": token.to_document(), "operationType": "insert", "fullDocument": {"x": bytes(200)}})
        shards[number * 7 % 3].append(Event(raw, 0, b"shop.orders", "insert"))
    return shards


def merge_batches(shards: list[list[Event]], size: int = 1_000) -> int:
    merge: Merge[Event] = Merge()
    for name in range(3):
        merge.add(str(name), ResumeToken.parse(shards[name][0].token))
    merged = 0
    for start in range(0, max(map(len, shards)), size):
        for name, events in enumerate(shards):
            if batch := events[start : start + size]:
                merge.feed(str(name), batch, ResumeToken.parse(batch[-1].token))
        merged += len(merge.take())
    for name in range(3):
        merge.remove(str(name))
    return merged + len(merge.take())


def merge_by_heap(shards: list[list[Event]]) -> int:
    return sum(1 for _ in heapq.merge(*shards, key=attrgetter("sort_key")))


def rate(run: Callable[[list[list[Event]]], int], shards: list[list[Event]]) -> float:
    began = time.process_time()
    count = run(shards)
    assert count == sum(map(len, shards)), count
    return count / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    shards = load(given.events)
    rounds = [(rate(merge_batches, shards), rate(merge_by_heap, shards)) for _ in range(given.rounds)]
    ours, heap = (median(column) for column in zip(*rounds, strict=True))
    print(f"merge of 3 shards: {ours:,.0f} events/s of CPU time; heapq.merge {heap:,.0f}; ratio {ours / heap:.2f}")


if __name__ == "__main__":
    main()
