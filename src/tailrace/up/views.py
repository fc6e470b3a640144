"""What a run shows while it goes on: a live table on a terminal, plain lines in a pipe, or JSON lines."""

from __future__ import annotations

import json
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tailrace.errors import TailraceError
from tailrace.http_client import fetch
from tailrace.owned.closeable import Closeable
from tailrace.settings import masked
from tailrace.up.guide import Guide
from tailrace.up.supervisor import Report, State

_STYLES = {State.UP: "green", State.STARTING: "yellow", State.DOWN: "red", State.GAVE_UP: "bold red"}
_SECONDS_BETWEEN_JSON = 5.0


class View(Closeable):
    """Takes what happens; calls may come from several threads at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    @abstractmethod
    def changed(self, report: Report) -> None:
        """Show that a part changed its state."""

    @abstractmethod
    def ready(self, guide: Guide) -> None:
        """Show that everything is up, and what to do with it."""

    @abstractmethod
    def tick(self, down: Sequence[str], beat: Beat | None) -> None:
        """Show, about once a second, that it goes on: what does not run, and how much the producer delivers."""

    def stopping(self) -> None:
        """Show that the parts are being stopped."""
        return

    def close(self) -> None:
        """Show that nothing runs any more."""
        return


class PlainView(View):
    """One line per change."""

    def changed(self, report: Report) -> None:
        """Print the change."""
        with self.lock:
            print(f"{self.elapsed:6.1f} s  {line_of(report)}", flush=True)

    def ready(self, guide: Guide) -> None:
        """Print the guide."""
        with self.lock:
            print(f"\neverything is up after {self.elapsed:.1f} s\n", flush=True)
            for what, value in addresses(guide):
                print(f"{what:12}{value}")
            for number, suggestion in enumerate(guide.suggestions, 1):
                print(f"\n{number}. {suggestion.what}:", *suggestion.commands, sep="\n   ")
            for note in guide.notes:
                print(f"\n{note}")
            print("\nCtrl-C stops everything.", flush=True)

    def tick(self, down: Sequence[str], beat: Beat | None) -> None:
        """Print nothing: changes have their own lines."""

    def stopping(self) -> None:
        """Say so."""
        with self.lock:
            print(f"{self.elapsed:6.1f} s  stopping", flush=True)


class JsonView(View):
    """One JSON object per change, and one every few seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._last = 0.0

    def changed(self, report: Report) -> None:
        """Print the change."""
        form = asdict(report) | {"log": str(report.log), "address": masked(report.address)}
        self._print("part", form | {"seconds": round(report.seconds, 3)})

    def ready(self, guide: Guide) -> None:
        """Print the guide."""
        form = asdict(guide) | {"settings_file": str(guide.settings_file), "logs": str(guide.logs)}
        self._print("ready", form)

    def tick(self, down: Sequence[str], beat: Beat | None) -> None:
        """Print which parts are down, and the producer's state."""
        if self.elapsed - self._last >= _SECONDS_BETWEEN_JSON:
            self._last = self.elapsed
            self._print("status", {"down": list(down), "producer": beat and asdict(beat)})

    def close(self) -> None:
        """Print the end."""
        self._print("stopped", {})

    def _print(self, event: str, form: dict[str, Any]) -> None:
        with self.lock:
            typer.echo(json.dumps({"event": event, "elapsed": round(self.elapsed, 3), **form}))


class TerminalView(View):
    """A table that fills while parts start; afterwards one line at the bottom, and changes above it."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._reports: dict[str, Report] = {}
        self._since: dict[str, float] = {}
        self._is_ready = False
        self._bottom = Text()
        self._spinner = Spinner("dots", Text("starting", "yellow"), style="yellow")
        self._live = Live(self, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __rich__(self) -> RenderableType:
        if self._is_ready:
            return self._bottom
        return Group(self._table(), Text(f"\n{self.elapsed:.0f} s   Ctrl-C stops", "dim"))

    def changed(self, report: Report) -> None:
        """Change the part's row; after the start, print a line as well."""
        with self.lock:
            self._reports[report.part] = report
            self._since[report.part] = time.monotonic()
            if report.state is State.GAVE_UP or (self._is_ready and report.state is not State.STOPPED):
                self._console.print(Text(f"{time.strftime('%H:%M:%S')}  {line_of(report)}", _STYLES[report.state]))

    def ready(self, guide: Guide) -> None:
        """Leave the table where it is and print the guide below it."""
        with self.lock:
            self._console.print(self._table())
            self._is_ready = True
        self._console.print(f"\n[bold green]Everything is up[/] after {self.elapsed:.0f} s.\n")
        for what, value in addresses(guide):
            self._console.print(f"[bold]{what:12}[/]{value}", soft_wrap=True, highlight=False)
        for number, suggestion in enumerate(guide.suggestions, 1):
            self._console.print(f"\n[bold]{number}. {suggestion.what}[/]")
            for command in suggestion.commands:
                self._console.print(f"   {command}", style="cyan", soft_wrap=True, highlight=False, markup=False)
        for note in guide.notes:
            self._console.print(f"\n{note}")
        self._console.print()

    def tick(self, down: Sequence[str], beat: Beat | None) -> None:
        """Draw the bottom line anew."""
        state = Text(f"down: {', '.join(down)}", "bold red") if down else Text("all parts up", "green")
        events = f"   {beat.state}, {beat.events_per_second:,.0f} events/s, {beat.events:,} in all" if beat else ""
        self._bottom = Text.assemble(state, f"{events}   {_shown_duration(self.elapsed)}   Ctrl-C stops")

    def stopping(self) -> None:
        """Say so at the bottom."""
        self._is_ready = True
        self._bottom = Text("stopping ...", "yellow")

    def close(self) -> None:
        """Take the bottom line away."""
        self._live.stop()
        self._console.print("Everything is stopped.")

    def _table(self) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("part", "", "seconds", "pid", "address"):
            table.add_column(name, justify="right" if name in ("seconds", "pid") else "left", no_wrap=True)
        for name, report in list(self._reports.items()):
            starting = report.state is State.STARTING
            seconds = time.monotonic() - self._since[name] if starting else report.seconds
            state: RenderableType = self._spinner if starting else Text(report.state, _STYLES.get(report.state, "dim"))
            table.add_row(name, state, f"{seconds:.1f}", str(report.pid or ""), masked(report.address))
        return table


def addresses(guide: Guide) -> list[tuple[str, str]]:
    """Give the addresses of what runs."""
    return [
        ("Dashboard", f"{guide.dashboard}   (token for its buttons: {guide.dashboard_token})"),
        ("MongoDB", guide.mongodb),
        ("Settings", str(guide.settings_file)),
        ("Logs", str(guide.logs)),
    ]


def line_of(report: Report) -> str:
    """Say what happened to a part, in one line; giving up takes as many as the log's end needs."""
    start = "starting" if report.starts == 1 else f"starting again ({report.starts})"
    texts = {
        State.STARTING: start,
        State.UP: f"up after {report.seconds:.1f} s, pid {report.pid}",
        State.STOPPED: "stopped",
    }
    text = texts.get(report.state) or masked(report.message)
    if report.state is State.UP and report.address:
        text += f", {masked(report.address)}"
    return f"{report.part:16} {text}"


def _shown_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


_SECONDS_TO_ANSWER = 0.5


@dataclass(frozen=True, slots=True)
class Beat:
    """What the producer reported at one poll."""

    state: str
    events: int
    events_per_second: float


class Pulse:
    """Polls a producer from time to time."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._last: tuple[float, int] | None = None

    def poll(self) -> Beat | None:
        """Give the state, and the rate since the poll before; None when nobody answers."""
        try:
            report = fetch(self._endpoint, "/state", timeout=_SECONDS_TO_ANSWER).json()
            now, events = time.monotonic(), int(report["events"])
        except (TailraceError, KeyError, TypeError):
            self._last = None
            return None
        before, self._last = self._last, (now, events)
        # A producer that was started again counts from nothing.
        grown = max(0, events - before[1]) / (now - before[0]) if before and now > before[0] else 0.0
        return Beat(str(report["state"]), events, grown)
