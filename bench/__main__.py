"""All scenarios, one after the other, each in a process of its own and within its budget; then the report.

    python -m bench --mode quick [--only drain,kafka] [--part engine]
    python -m bench --only drain --again

`--part` measures one part of the product beside its rivals, over all scenarios that have it. `--again` measures whole
scenarios again and puts them into the stored result, with a note of when and at which commit.
One that fails or runs out of time keeps what it measured and does not touch the others. Ctrl-C ends the current one
and writes the report of what there is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import report
from bench.contestant import ROOT, end_with_parent
from bench.machine import new_result
from bench.peers import fetch_everything
from bench.result import Result, ScenarioResult
from bench.scenario import end_once, say

BUDGETS = {
    "tiny": dict.fromkeys(("parts", "drain", "kafka", "latency", "cost", "growth", "lake", "delivery"), 900.0),
    "quick": {
        "parts": 15.0,
        "drain": 195.0,
        "kafka": 115.0,
        "latency": 160.0,
        "cost": 30.0,
        "growth": 65.0,
        "delivery": 60.0,
    },
    "full": {
        "parts": 75.0,
        "drain": 620.0,
        "kafka": 620.0,
        "latency": 900.0,
        "cost": 260.0,
        "growth": 1_050.0,
        "lake": 420.0,
        "delivery": 150.0,
    },
}
"""Seconds for each scenario: 640 in a quick run, 4,095 in a full one."""
PARTS = {
    "driver": {"drain": r"^(raw getMore loop$|pymongo|(async )?driver)", "latency": r"^(pymongo watch\(\)|driver)$"},
    "engine": {"drain": r"^(raw|engine)", "latency": r"^(pymongo watch\(\)|engine)$", "growth": r"^(raw|engine)"},
    "capture": {"kafka": r"^(raw|producer|naive)", "latency": r"^(producer|naive)", "cost": ""},
    "gateway": {
        "drain": r"^(raw getMore loop$|gateway|server-side)",
        "latency": r"^(pymongo watch\(\)|gateway)$",
        "delivery": "",
    },
    "merge": {"parts": r"^(router|heapq)", "growth": r"^gateway over shards"},
    "spark": {"drain": r"Spark|format", "latency": r"^tailrace (features|warehouse)$", "lake": ""},
}
"""The scenarios of each part, with its contestants as a regular expression."""
PARTIAL = ROOT / "bench" / "partial" / "result.json"
_GRACE = 45.0
"""How long a scenario whose budget is spent may take to end what it began; its runs have limits of their own."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--mode", choices=list(BUDGETS), default="full")
    parser.add_argument("--only", default="", help="scenarios, separated by commas")
    parser.add_argument("--part", choices=list(PARTS), help="one part of the product")
    parser.add_argument("--again", action="store_true", help="replace the scenarios of `--only` in the stored result")
    parser.add_argument("--out", type=Path, help="where the result goes; a whole one to bench/result.json")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md too")
    given = parser.parse_args()
    if given.again and (given.part or given.out or not given.only):
        parser.error("--again needs --only, and goes with neither --part nor --out")
    end_once()
    names = given.only.split(",") if given.only else list(BUDGETS[given.mode])
    wanted = PARTS[given.part] if given.part else dict.fromkeys(names, "")
    say("fetching what is not in the cache yet")
    fetch_everything()
    is_chosen = bool(given.only or given.part) and not given.again
    out = given.out or (PARTIAL if is_chosen else report.RESULT)
    out.parent.mkdir(exist_ok=True)
    result = stored_result(given.mode) if given.again else new_result(given.mode)
    began = time.monotonic()
    is_whole = True
    for name, only in wanted.items():
        found, is_whole = run_scenario(name, given.mode, only)
        put(result, found, again=given.again)
        if not given.again:
            result.seconds = time.monotonic() - began
        out.write_text(result.to_json())
        if not is_whole:
            say("interrupted; this is the report of what was measured")
            break
    # A run of some scenarios, or one that was cut short, does not replace the page of a whole one.
    docs = ROOT / "docs" if given.docs and is_whole and not is_chosen else None
    files = report.write(result, out.parent, docs=docs)
    pages = ", ".join(str(path) for path in files if path.suffix != ".svg")
    say(f"{out}, {pages}; {result.seconds / 60:.1f} minutes")
    sys.exit(0 if is_whole and all(one.status != "failed" for one in result.scenarios) else 1)


def stored_result(mode: str) -> Result:
    """The result of the last whole run, if it can be compared with one of now."""
    stored, now = Result.read(report.RESULT), new_result(mode)
    one, other = ((each.mode, each.machine["cpu"], each.machine["cores"], each.versions) for each in (stored, now))
    if one != other:
        sys.exit(f"{report.RESULT} is of another mode, machine or version: run all scenarios")
    return stored


def put(result: Result, found: ScenarioResult, *, again: bool) -> None:
    """Add a scenario; one that is measured again takes the place of an earlier one, and says when that was."""
    if again:
        now = new_result(result.mode)
        found.notes.insert(0, f"measured at {now.started[:16].replace('T', ' ')} UTC, commit {now.commit}")
        result.seconds += found.seconds
    names = [one.name for one in result.scenarios]
    if found.name not in names:
        result.scenarios.append(found)
        return
    place = names.index(found.name)
    result.seconds -= result.scenarios[place].seconds
    result.scenarios[place] = found


def run_scenario(name: str, mode: str, only: str) -> tuple[ScenarioResult, bool]:
    """Run one scenario in a process; what it wrote last is its result, however it ended. False: Ctrl-C came."""
    is_whole = True
    budget = BUDGETS[mode].get(name, 300.0)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", f"bench.{name}", "--mode", mode, "--only", only]
        command += ["--budget", str(budget), "--out", str(out)]
        process = subprocess.Popen(command, cwd=ROOT, preexec_fn=end_with_parent)
        try:
            process.wait(budget + _GRACE)
            problem = "" if process.returncode in (0, 1) else f"it ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            problem = f"it did not end within {budget + _GRACE:.0f} s"
        except KeyboardInterrupt:
            problem, is_whole = "", False
        finally:
            end(process)
        found = (
            Result.read(out).scenarios[0] if out.exists() else ScenarioResult(name, "", "failed", "it wrote nothing")
        )
    if problem:
        found.status, found.reason = "partial" if found.ratios or found.measurements else "failed", problem
        say(f"{name}: {problem}")
    return found, is_whole


def end(process: subprocess.Popen[bytes]) -> None:
    """End a scenario: ask it first, so that it ends its servers; they end with it in any case."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
