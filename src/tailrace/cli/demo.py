"""`tailrace demo`: a replica set, a stream of orders, and the change events they make, live."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

_EVENTS_SHOWN = 12
_COLOURS = {"insert": "green", "update": "yellow", "replace": "yellow", "delete": "red"}
_REDRAWS_PER_SECOND = 5


class EventBoard:
    """What the terminal shows: the newest events, and counts and rates by operation."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._newest: deque[Mapping[str, Any]] = deque(maxlen=_EVENTS_SHOWN)
        self._last_second: deque[float] = deque()
        self.counts: Counter[str] = Counter()

    def add(self, event: Mapping[str, Any]) -> None:
        """Take one more event."""
        self._newest.append(event)
        self.counts[event["operationType"]] += 1
        self._last_second.append(time.monotonic())

    def rate(self) -> int:
        """Events in the last second."""
        now = time.monotonic()
        while self._last_second and self._last_second[0] < now - 1:
            self._last_second.popleft()
        return len(self._last_second)

    def summary(self) -> str:
        """One line: how many events, of which kinds, in how long."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.counts.most_common())
        return f"{self.counts.total()} events in {time.monotonic() - self._started:.0f} s: {kinds or 'none'}"

    def __rich__(self) -> RenderableType:
        table = Table("time", "operation", "namespace", "what changed", box=None, header_style="bold", expand=True)
        for event in self._newest:
            operation = event["operationType"]
            at = time.strftime("%H:%M:%S", time.localtime(event["clusterTime"].time))
            namespace = f"{event['ns']['db']}.{event['ns'].get('coll', '')}"
            table.add_row(at, Text(operation, _COLOURS.get(operation, "")), namespace, _what_changed(event))
        return Group(table, Text(f"\n{self.rate()} events/s   {self.summary()}   Ctrl-C stops", "bold"))


def _what_changed(event: Mapping[str, Any]) -> Text:
    key = str(event.get("documentKey", {}).get("_id", ""))[-6:]
    if "updateDescription" in event:
        changes = dict(event["updateDescription"]["updatedFields"])
    else:
        changes = {name: value for name, value in (event.get("fullDocument") or {}).items() if name != "_id"}
    shown = "  ".join(f"{name}={value}" for name, value in changes.items() if name != "placed_at")
    return Text(f"…{key}  {shown}", no_wrap=True, overflow="ellipsis")


def demo(
    seconds: Annotated[float | None, typer.Option(help="Stop after this many seconds.", min=1)] = None,
    rate: Annotated[float, typer.Option(help="Writes per second.", min=1)] = 50,
    mongodb_version: Annotated[str, typer.Option(help="MongoDB version to fetch and start.")] = "6.0.5",
) -> None:
    """Start a replica set, write orders to it and show their change events live."""
    from tailrace.driver import watch
    from tailrace.stand import ReplicaSet
    from tailrace.stand.orders import OrderLoad

    console = Console(stderr=False)
    started = time.monotonic()
    console.print(f"starting a MongoDB {mongodb_version} replica set ...")
    with ReplicaSet.start(mongodb_version) as replica_set, replica_set.client() as client:
        console.print(f"ready after {time.monotonic() - started:.1f} s at {replica_set.uri}")
        stream = watch(client["shop"], max_await_time_ms=200)
        with stream, OrderLoad(client, per_second=rate):
            board = EventBoard()
            try:
                _show_until(board, stream, console, time.monotonic() + seconds if seconds else None)
            except KeyboardInterrupt:
                pass
    console.print(board.summary())
    if not board.counts:
        raise typer.Exit(1)


def _show_until(board: EventBoard, stream: Any, console: Console, deadline: float | None) -> None:
    """Follow the stream; redraw on a terminal, print one line a second into a pipe."""
    next_draw = 0.0
    with Live(board, console=console, auto_refresh=False, transient=True) as live:
        while deadline is None or time.monotonic() < deadline:
            event = stream.try_next()
            if event is not None:
                board.add(event)
            now = time.monotonic()
            if now < next_draw:
                continue
            if console.is_terminal:
                live.refresh()
                next_draw = now + 1 / _REDRAWS_PER_SECOND
            else:
                print(f"{board.rate()} events/s, {board.summary()}", flush=True)
                next_draw = now + 1
