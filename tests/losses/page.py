"""The page of the table of losses, made of the result file and of nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from losses.faults import FAULTS, Ground
from losses.tools import TOOLS, Tool

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "losses" / "results.jsonl"
PAGE = ROOT / "docs" / "losses.md"

_HEAD = """# What each tool loses

Each section is a fault, each row a tool: tailrace with both guarantees and both sources, Debezium, MongoDB's own Kafka
connector, and the loop that everybody writes first. All of them get the same writers with the same seeds, the same
servers and the same validator, which compares the server's own change stream, read by pymongo, with what a
`read_committed` consumer finds in the topic.

`make losses` runs all of it and makes this page from its results; `make losses ONLY='{only}'` repeats one cell.

Each tool is started again when it ends, as a service manager would. *Acknowledged* are writes that a majority of the
replica set took; *changes* are the events of the server's own stream, those of the fault included. *Dead letters* are
changes that the tool reported and kept in a topic of their own; they are not counted as lost. *Recovery* is the longest
time from the end of the fault to the last change in the topic. *Operator* says in how many runs the tool waited for a
human, or delivered nothing for three minutes; what it had not delivered by then is counted as lost, whether or not a
human could have it delivered yet, and its own words stand below the table. Times are of a small machine that did
other work too, more in some runs than in others, so rows and tools are not to be compared by them closely.

A run in which the tool does not begin to deliver within four minutes leaves no line here. There was one: tailrace
exactly-once, change-stream, in the row of the paused tool: its position store got no answer from the broker for three
minutes, why is not known. It was run again.

The validator looks at which documents changed, not at what became of their texts: what a tool makes of a string that
is not UTF-8 is not compared. tailrace dead-letters such an event with its bytes.

Runs of older versions of tailrace are left out where a newer one was run. What they found is mended: everything was
delivered again at each try while a position could not be saved (988 duplicates of 1,075 changes; once that was mended,
still 214 of 884 when the lease could not be renewed either), and an exactly-once producer that was started
after its history was lost ended with an error, again and again, instead of recovering.

There is no row for a range that moves between shards: the other tools need a `mongos`, of which no build could be had
(`make nemesis` moves ranges under tailrace alone), and none for a downgrade of the server. Kills at each step of the
commit order need hooks that only tailrace has (`make crash`).
"""
_GROUNDS = {
    Ground.ORDINARY: "",
    Ground.SMALL_OPLOG: f" On {Ground.SMALL_OPLOG.value}. Nobody has all changes then, so documents are counted: "
    "*changes* are those there are at the end, and *lost* are those that a consumer lacks, has in an older state or "
    "has still though they were deleted.",
    Ground.SMALL_DISK: f" On {Ground.SMALL_DISK.value}.",
}
_COLUMNS = (
    "tool", "runs", "acknowledged", "changes", "delivered", "lost", "dead letters", "duplicated", "reordered",
    "recovery", "operator",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """All runs of one tool under one fault."""

    tool: str
    cells: Sequence[dict[str, Any]]

    def total(self, name: str) -> int:
        """The sum of a figure over the runs."""
        return sum(cell[name] for cell in self.cells)

    @property
    def lost(self) -> int:
        """Changes that are neither in the topic nor among the dead letters."""
        return sum(max(0, cell["lost"] - cell["dead_lettered"]) for cell in self.cells)

    @property
    def stopped(self) -> int:
        """In how many runs it waited for an operator."""
        return sum(bool(cell["stopped"]) for cell in self.cells)

    @property
    def recovery(self) -> float | None:
        """The longest time to recover; None where a run did not."""
        times = [cell["seconds_to_recover"] for cell in self.cells]
        return None if None in times else max(times)

    def line(self) -> str:
        """The row of the table."""
        longest = "never" if self.recovery is None else f"{self.recovery:.0f} s"
        figures = (
            len(self.cells), self.total("acknowledged"), self.total("changes"), self.total("delivered"), self.lost,
            self.total("dead_lettered"), self.total("duplicated"), self.total("reordered"), longest,
            self.stopped or "no",
        )  # fmt: skip
        return f"| {self.tool} | {' | '.join(map(str, figures))} |"


def read_results(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The cells of the result file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def page(cells: Iterable[dict[str, Any]]) -> str:
    """The whole page."""
    cells = list(cells)
    tools = [tool for tool in TOOLS if any(cell["tool"] == tool.title for cell in cells)]
    table = {
        fault: list(_rows(cells, fault, tools)) for fault in FAULTS if any(cell["fault"] == fault for cell in cells)
    }
    servers = ", ".join(sorted({cell["server"] for cell in cells}))
    seeds = ", ".join(map(str, sorted({cell["seed"] for cell in cells})))
    parts = [_HEAD.format(only="kills and Debezium"), f"MongoDB {servers}, a replica set of three; seeds {seeds}.\n"]
    parts += ["## Where another tool did better\n", *_better_rivals(table), ""]
    for fault, rows in table.items():
        parts.append(f"## {fault[0].upper()}{fault[1:]}\n")
        parts.append(f"{FAULTS[fault].strike.__doc__}{_GROUNDS[FAULTS[fault].ground]}\n")
        parts.append(f"| {' | '.join(_COLUMNS)} |")
        parts.append("|---" * len(_COLUMNS) + "|")
        parts += [row.line() for row in rows]
        parts += [f"\n{reason}" for reason in _reasons(rows)]
        parts += [f"\n{special}" for special in _special_settings(rows)]
        parts.append("")
    parts.append("## Settings\n")
    for tool in tools:
        given = ", ".join(f"`{key}={value}`" for key, value in tool.settings.items())
        parts.append(f"- {tool.title} ({tool.version}): {given}")
    return "\n".join(parts) + "\n"


def _rows(cells: Iterable[dict[str, Any]], fault: str, tools: Iterable[Tool]) -> Iterator[Row]:
    for tool in tools:
        found = [cell for cell in cells if cell["fault"] == fault and cell["tool"] == tool.title]
        if found:
            yield Row(tool.title, found)


def _better_rivals(table: dict[str, list[Row]]) -> Iterator[str]:
    """A line for each figure in which a tool that lost nothing is ahead of one of ours."""
    found = False
    for fault, rows in table.items():
        for rival in rows:
            if _is_ours(rival) or rival.lost or rival.stopped:
                continue
            for ours in filter(_is_ours, rows):
                for what in _ahead(rival, ours):
                    found = True
                    yield f"- {fault}: {rival.tool} {what} {ours.tool}."
    if not found:
        yield "In no row."


def _ahead(rival: Row, ours: Row) -> Iterator[str]:
    if rival.lost < ours.lost:
        yield f"lost {rival.lost}, not {ours.lost} as"
    if rival.total("dead_lettered") < ours.total("dead_lettered"):
        yield f"dead-lettered {rival.total('dead_lettered')}, not {ours.total('dead_lettered')} as"
    if rival.total("duplicated") < ours.total("duplicated"):
        yield f"duplicated {rival.total('duplicated')}, not {ours.total('duplicated')} as"
    if rival.recovery is not None and (ours.recovery is None or rival.recovery + 1 < ours.recovery):
        longer = "never" if ours.recovery is None else f"after {ours.recovery:.0f} s"
        yield f"recovered after {rival.recovery:.0f} s, not {longer} as"


def _reasons(rows: Iterable[Row]) -> Iterator[str]:
    """What a tool gave as its reason when it waited for an operator."""
    for row in rows:
        for reason in dict.fromkeys(cell["stopped"] for cell in row.cells if cell["stopped"]):
            yield f"{row.tool}: `{reason.splitlines()[0]}`"


def _special_settings(rows: Iterable[Row]) -> Iterator[str]:
    """What a tool was set to in this row alone."""
    for row in rows:
        chosen = {key: value for cell in row.cells for key, value in cell.get("settings", {}).items()}
        if chosen:
            yield f"{row.tool} here with {', '.join(f'`{key}={value}`' for key, value in chosen.items())}."


def _is_ours(row: Row) -> bool:
    return row.tool.startswith("tailrace")


if __name__ == "__main__":
    PAGE.write_text(page(read_results()))
