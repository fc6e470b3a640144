"""What the runs that are kept found, as the page on the nemesis shows it: made of the result file and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "nemesis" / "results.jsonl"
PAGE = ROOT / "docs" / "nemesis.md"
HEADING = "## What was run"
_COLUMNS = (
    "line", "seeds", "minutes of faults", "faults", "acknowledged", "rolled back", "events", "lost", "invented",
    "reordered", "duplicated (at-least-once)", "duplicated (others)", "longest until healthy", "failed seeds",
)  # fmt: skip


def read_results(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The runs of the result file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def section(runs: Iterable[dict[str, Any]]) -> str:
    """The end of the page: a row for each kind of line."""
    runs = list(runs)
    versions = ", ".join(sorted({run["version"] for run in runs}))
    lines = [HEADING, "", f"MongoDB {versions}, on a machine of two cores that had other work too.", ""]
    lines += [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    lines += [_row(name, [run for run in runs if run["line"] == name]) for name in dict.fromkeys(_names(runs))]
    return "\n".join(lines) + "\n"


def whole(page: str, runs: Iterable[dict[str, Any]]) -> str:
    """The page with this section at its end."""
    return page.partition(HEADING)[0] + section(runs)


def _names(runs: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (run["line"] for run in runs)


def _row(name: str, runs: list[dict[str, Any]]) -> str:
    readers = [(reader, found) for run in runs for reader, found in run["readers"].items()]

    def total(figure: str) -> int:
        return sum(found[figure] for _, found in readers)

    repeated = sum(found["duplicated"] for reader, found in readers if reader.startswith("at-least-once"))
    healthy = max((seconds for run in runs for seconds in run["healthy_after"].values()), default=0.0)
    cells = (
        name,
        ", ".join(str(run["seed"]) for run in runs),
        f"{sum(run['seconds'] for run in runs) / 60:.0f}",
        sum("left out" not in line for run in runs for line in run["timeline"]),
        sum(run["acknowledged"] for run in runs),
        sum(run["rolled_back"] for run in runs),
        sum(run["events"] for run in runs),
        total("lost"),
        total("invented"),
        total("reordered"),
        repeated,
        total("duplicated") - repeated,
        f"{healthy:.0f} s",
        ", ".join(str(run["seed"]) for run in runs if run["problems"]) or "none",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    PAGE.write_text(whole(PAGE.read_text(), read_results()))
