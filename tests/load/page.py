"""The page on load, made of the result file and of nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "load" / "results.jsonl"
PAGE = ROOT / "docs" / "load.md"

_HEAD = """# Many watchers

`make load` opens 500 change streams at one gateway beside a writer that inserts one document after the other as fast as
it can, over ten collections, and then 10,000 on one collection beside a writer of one document a second. Each watcher
checks that it gets every document of its collection, in order, once; `MINUTES=10` is how long each writer writes. One
process plays all watchers, with bare connections, on the machine of the gateway and the server.

*Behind* is how long the last watcher needed for the rest after the last insert: a writer at full speed is not slowed
down by its watchers, so on few cores they are. *Growth* is the greatest resident size of the gateway in the
second half of the run, less that in the first half. The machine had two cores and other work at the time.
"""
_COLUMNS = (
    "watchers", "minutes", "inserts", "delivered", "while writing", "behind", "gateway CPU per delivery",
    "gateway memory", "growth",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """The figures of one run."""

    watchers: int
    inserts: int
    minutes: float
    delivered: int
    delivered_while_writing: int
    seconds_behind: float
    gateway_cpu_seconds: float
    gateway_mb: int
    growth_mb: int

    def line(self) -> str:
        """The row of the table."""
        cells = (
            f"{self.watchers:,}", self.minutes, f"{self.inserts:,}", f"{self.delivered:,}",
            f"{self.delivered_while_writing:,}", f"{self.seconds_behind} s",
            f"{self.gateway_cpu_seconds / self.delivered * 1e6:.1f} µs", f"{self.gateway_mb} MB",
            f"{self.growth_mb} MB",
        )  # fmt: skip
        return f"| {' | '.join(map(str, cells))} |"


def read_results(path: Path = RESULTS) -> list[Load]:
    """The runs of the result file."""
    return [Load(**json.loads(line)) for line in path.read_text().splitlines()]


def page(runs: Iterable[Load]) -> str:
    """The whole page."""
    head = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    return "\n".join([_HEAD, *head, *(run.line() for run in runs)]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(read_results()))
