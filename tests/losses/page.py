"""The page of the table of losses, made of the result file and of nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from losses.tools import TOOLS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "losses" / "results.jsonl"
PAGE = ROOT / "docs" / "losses.md"

_COLUMNS = (
    "tool", "runs", "changes", "lost", "set aside", "duplicated", "reordered", "longest recovery", "stopped"
)  # fmt: skip
_HEAD = """# What each tool loses

Each row is a fault, each column a tool: tailrace, Debezium, MongoDB's own Kafka connector, and the loop that everybody
writes first. The same writers with the same seeds, the same servers, the same validator: what the server's own change
stream has, read by pymongo, against what a `read_committed` consumer finds in the topic.

`make losses` runs all of it and makes this page from its results; `make losses ONLY='{only}'` repeats one cell.

Each tool is started again when it ends, as a service manager would. *Set aside* are records in a dead-letter topic,
which the tool reports. *Stopped* means that the tool waited for an operator.
"""


def read_results(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The cells of the result file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def page(cells: Iterable[dict[str, Any]]) -> str:
    """The whole page."""
    cells = list(cells)
    faults = list(dict.fromkeys(cell["fault"] for cell in cells))
    tools = [tool for tool in TOOLS if any(cell["tool"] == tool.title for cell in cells)]
    parts = [_HEAD.format(only="kills and Debezium")]
    parts.append(f"MongoDB {', '.join(sorted({cell['server'] for cell in cells}))}, replica set of three.\n")
    for fault in faults:
        parts.append(f"## {fault[0].upper()}{fault[1:]}\n")
        parts.append(
            "| tool | runs | changes | lost | set aside | duplicated | reordered | longest recovery | stopped |"
        )
        parts.append("|---|---|---|---|---|---|---|---|---|")
        for tool in tools:
            mine = [cell for cell in cells if cell["fault"] == fault and cell["tool"] == tool.title]
            if mine:
                parts.append(_row(tool.title, mine))
        parts.append("")
    parts.append("## Settings\n")
    for tool in tools:
        given = ", ".join(f"`{key}={value}`" for key, value in tool.settings.items())
        parts.append(f"- {tool.title}: {given}")
    return "\n".join(parts) + "\n"


def _row(title: str, cells: list[dict[str, Any]]) -> str:
    def total(name: str) -> int:
        return sum(cell[name] for cell in cells)

    times = [cell["seconds_to_recover"] for cell in cells]
    longest = "never" if None in times else f"{max(times):.0f} s"
    lost = max(0, total("lost") - total("set_aside"))
    stopped = sum(bool(cell["stopped"]) for cell in cells)
    figures = [len(cells), total("changes"), lost, total("set_aside"), total("duplicated"), total("reordered")]
    return f"| {title} | {' | '.join(map(str, figures))} | {longest} | {stopped or 'no'} |"


if __name__ == "__main__":
    PAGE.write_text(page(read_results()))
