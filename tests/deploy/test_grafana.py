"""The Grafana board: its expressions name metrics and labels that exist, and leave none of ours out."""

from __future__ import annotations

import json
import re
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.exposed import labels_by_metric
from tailrace.owned import run_guarded
from waiting import SECONDS

BOARD = json.loads((Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "tailrace.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [pytest.param(target["expr"], id=panel["title"]) for panel in PANELS for target in panel["targets"]]
EXPOSED = labels_by_metric()
OF_PROMETHEUS = {"job", "instance"}
_METRIC = re.compile(r"\b((?:tailrace|process)_\w+)(?:\{([^}]*)\})?")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_metrics_and_labels_exist(expression: str) -> None:
    used = _METRIC.findall(expression)
    assert used
    for name, selector in used:
        assert name in EXPOSED
        assert set(re.findall(r"(\w+)=~?\"", selector)) <= EXPOSED[name] | OF_PROMETHEUS
    kept = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    assert kept <= set.union(*(EXPOSED[name] for name, _ in used))


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_legends_show_labels_that_the_expression_keeps(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
        names = [name for name, _ in _METRIC.findall(target["expr"])]
        kept = {label.strip() for label in grouped[0].split(",")} if grouped else EXPOSED[names[0]] | OF_PROMETHEUS
        assert shown <= kept


def test_every_metric_of_ours_is_on_the_board() -> None:
    shown = {name for panel in PANELS for target in panel["targets"] for name, _ in _METRIC.findall(target["expr"])}
    ours = {name for name in EXPOSED if name.startswith("tailrace_") and not name.endswith(("_sum", "_count"))}
    ours -= {"tailrace_merge_held_seconds"}  # deprecated: the board shows the name that replaced it
    assert ours <= shown


def test_variables_are_declared_and_look_at_metrics_that_exist() -> None:
    declared = {variable["name"] for variable in BOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"]))) - {"__rate_interval"}
    assert used <= declared
    for variable in BOARD["templating"]["list"]:
        assert set(re.findall(r"tailrace_\w+", json.dumps(variable.get("query")))) <= EXPOSED.keys()


def test_panels_have_their_own_numbers_and_places() -> None:
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(numbers) == len(set(numbers))
    for one, other in combinations((panel["gridPos"] for panel in BOARD["panels"]), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
        assert one["x"] + one["w"] <= 24


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH; names and labels are checked")
def test_prometheus_reads_every_expression(tmp_path: Path) -> None:
    rules = [
        {"record": f"board:{number}", "expr": re.sub(r"\$\w+", "x", target["expr"].replace("$__rate_interval", "1m"))}
        for number, target in enumerate(target for panel in PANELS for target in panel["targets"])
    ]
    file = tmp_path / "board.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    done = run_guarded(["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
