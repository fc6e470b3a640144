"""The check against a stored baseline: a ratio that fell by more than a fifth fails it.

python -m bench.check [RESULT.json]   compares
python -m bench.check --store         makes the newest result the baseline of its mode

Ratios are compared, not figures, so that another machine or a busy one changes little.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.report import HERE, RESULT
from bench.result import Result

BASELINE = HERE / "baseline.json"
MOST = 0.2
"""The share by which a ratio may fall."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One ratio, then and now."""

    name: str
    before: float
    now: float | None

    @property
    def change(self) -> float:
        """By which share it grew; a missing one has fallen to nothing."""
        return -1.0 if self.now is None else self.now / self.before - 1

    @property
    def is_bad(self) -> bool:
        """Whether it fell too much. What was not measured is told apart: a peer may be missing on a machine."""
        return self.now is not None and self.change < -MOST


def compare(baseline: Mapping[str, float], result: Result) -> list[Finding]:
    """Every ratio of the baseline beside the result's, the worst first."""
    now = {name: one.value for name, one in result.ratios().items()}
    return sorted((Finding(name, value, now.get(name)) for name, value in baseline.items()), key=lambda one: one.change)


def read_baseline(path: Path, mode: str) -> dict[str, float]:
    """The stored ratios of a mode; quick and full runs are never compared with each other."""
    stored: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
    return stored.get(mode, {})


def store(path: Path, result: Result) -> int:
    """Make a result the baseline of its mode; gives the number of ratios."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored[result.mode] = {name: round(one.value, 3) for name, one in result.ratios().items()}
    path.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    return len(stored[result.mode])


def main() -> None:
    """The command line; ends with 1 when a ratio fell too much, with 2 when there is nothing to compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, nargs="?", default=RESULT)
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--store", action="store_true")
    given = parser.parse_args()
    if not given.result.exists():
        print(f"there is no result at {given.result}; run make bench first", file=sys.stderr)
        sys.exit(2)
    result = Result.read(given.result)
    if given.store:
        print(f"stored {store(given.baseline, result)} ratios of a {result.mode} run")
        return
    baseline = read_baseline(given.baseline, result.mode)
    if not baseline:
        print(f"there is no baseline of a {result.mode} run; make one with --store", file=sys.stderr)
        sys.exit(2)
    sys.exit(1 if show(compare(baseline, result)) else 0)


def show(findings: list[Finding]) -> int:
    """Print what changed; gives how many ratios fell too much."""
    for one in findings:
        if one.now is None:
            print(f"not measured  {one.name} (was {one.before:.2f})")
        else:
            verdict = "FELL" if one.is_bad else "ok"
            print(f"{verdict:12}  {one.name}: {one.before:.2f} -> {one.now:.2f} ({one.change:+.0%})")
    bad = sum(one.is_bad for one in findings)
    print(f"{bad} of {len(findings)} ratios fell by more than {MOST:.0%}")
    return bad


if __name__ == "__main__":
    main()
