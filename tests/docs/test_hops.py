"""How many functions of ours an event passes on its way to a callback; `docs/architecture.md` has the numbers."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tailrace
from tailrace import kernel
from tailrace.engine.live import watch_oplog
from tailrace.stand import ReplicaSet

SOURCE = str(Path(tailrace.__file__).parent)
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text()
BASE = ("raw/", "token/", "kernel.py", "retry.py", "event.py")
"""Libraries that do not lead anywhere: a reader of the way need not follow them."""
LINES: dict[str, Callable[..., Any]] = {"watch_oplog": watch_oplog, "watch": tailrace.watch}


class Hops:
    """Counts calls of functions of ours in this thread, and how deep they are nested."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.deepest = 0

    def __enter__(self) -> Hops:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := _own_name(frame)):
            self.calls[name] += 1
            self.deepest = max(self.deepest, sum(1 for each in _stack(frame) if _own_name(each)))


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _own_name(frame: FrameType) -> str | None:
    file = frame.f_code.co_filename.removeprefix(f"{SOURCE}/")
    if file == frame.f_code.co_filename or file.startswith(BASE):
        return None
    return f"{file} {frame.f_code.co_qualname}"


def listed(line: str) -> set[str]:
    """The functions that the page lists behind the name of a line."""
    part = PAGE.split(f"\n`{line}`, ")[1].split("\n`")[0].split("\n## ")[0]
    return {f"{file} {name}" for file, name in re.findall(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", part, re.MULTILINE)}


def documented(line: str) -> tuple[int, int]:
    found = re.search(rf"^\| `{line}` \| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    assert found, f"docs/architecture.md does not tell the hops of {line}"
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("line", LINES)
def test_the_way_to_a_callback_is_as_short_as_documented(line: str, mongodb: ReplicaSet, database: Any) -> None:
    if line == "watch_oplog" and kernel.module() is None:
        pytest.skip("the reference, without the kernel, makes events one by one")
    counted = {events: _count(LINES[line], database.orders, events) for events in (50, 150)}
    functions, deepest = documented(line)
    assert len(listed(line)) == functions
    for events, hops in counted.items():
        assert len(hops.calls) <= functions, sorted(hops.calls)
        assert set(hops.calls) <= listed(line), "the page lists every function"
        assert hops.deepest <= deepest
        assert sum(hops.calls.values()) < events + functions, "nothing of ours is called once for each event"


def _count(open_stream: Callable[..., Any], collection: Any, events: int) -> Hops:
    """Read some events that are there already; the least of some turns, because a turn may need two batches."""
    collection.insert_one({})
    found: list[Hops] = []
    with open_stream(collection, max_await_time_ms=60_000) as stream:
        batches = stream.batches()
        for _ in range(4):
            collection.insert_many([{} for _ in range(events)])
            delivered: list[bytes] = []
            with Hops() as hops:
                while len(delivered) < events:
                    delivered.extend(next(batches).events)
            found.append(hops)
    return min(found, key=lambda hops: hops.calls.total())
