"""The check: a ratio that fell by over a fifth fails it, one that was not measured is told, and modes never mix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.check import Finding, compare, read_baseline, store

from bench_results import sample_result
from tailrace.owned import run_guarded

ROOT = Path(__file__).resolve().parents[2]
RATE = "drain: engine / Debezium, rate"


@pytest.mark.parametrize(
    ("before", "now", "is_bad"),
    [(2.0, 2.0, False), (2.0, 1.61, False), (2.0, 1.59, True), (2.0, 9.0, False), (2.0, None, False)],
)
def test_a_fifth_is_the_limit(before: float, now: float | None, is_bad: bool) -> None:
    assert Finding("a ratio", before, now).is_bad is is_bad


def test_the_worst_comes_first() -> None:
    findings = compare({RATE: 4.0, "drain: engine / limit": 0.5, "gone": 1.0}, sample_result())
    assert [one.name for one in findings] == ["gone", RATE, "drain: engine / limit"]
    assert [one.is_bad for one in findings] == [False, True, False]


def test_a_baseline_is_kept_by_mode(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    quick, full = sample_result(2.0), sample_result(3.0)
    full.mode = "full"
    assert store(path, quick) == store(path, full) == 3
    assert read_baseline(path, "quick")[RATE] == 2.0
    assert read_baseline(path, "full")[RATE] == 3.0
    assert read_baseline(path, "tiny") == {}


@pytest.mark.parametrize(("now", "code"), [(2.0, 0), (1.7, 0), (1.5, 1)])
def test_the_command_fails_on_a_drop(tmp_path: Path, now: float, code: int) -> None:
    store(tmp_path / "baseline.json", sample_result(2.0))
    assert _check(tmp_path, now).returncode == code


def test_without_a_baseline_there_is_nothing_to_compare(tmp_path: Path) -> None:
    answer = _check(tmp_path, 2.0)
    assert answer.returncode == 2
    assert "--store" in answer.stderr


def test_storing_makes_the_next_check_pass(tmp_path: Path) -> None:
    assert _check(tmp_path, 1.0, "--store").returncode == 0
    assert json.loads((tmp_path / "baseline.json").read_text())["quick"][RATE] == 1.0
    assert _check(tmp_path, 1.0).returncode == 0


def _check(folder: Path, ratio: float, *more: str) -> subprocess.CompletedProcess[str]:
    result = folder / "result.json"
    result.write_text(sample_result(ratio).to_json())
    command = [sys.executable, "-m", "bench.check", str(result), "--baseline", str(folder / "baseline.json"), *more]
    return run_guarded(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
