"""The alert rules: that they name metrics which exist, and that each fires on made-up series exactly when it should."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from promql import firing, minutes, series_of
from tailrace.monitor.liveness import State
from tailrace.monitor.metrics import REGISTRY
from tailrace.owned import run_guarded
from tailrace.settings import MonitorSettings
from waiting import SECONDS

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]
]
TESTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "rules_test.yml").read_text())["tests"]
MOMENTS = [(test, moment) for test in TESTS for moment in test["promql_expr_test"]]


def expected_alerts(moment: dict[str, Any]) -> Counter[tuple[str, str | None]]:
    expected: Counter[tuple[str, str | None]] = Counter()
    for sample in moment.get("exp_samples", []):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"]))
        expected[labels["alertname"], labels.get("stream")] += sample["value"]
    return expected


@pytest.mark.parametrize(
    ("test", "moment"), MOMENTS, ids=[f"{test['name']} at {moment['eval_time']}" for test, moment in MOMENTS]
)
def test_exactly_the_expected_alerts_fire(test: dict[str, Any], moment: dict[str, Any]) -> None:
    series = series_of(test["input_series"])
    minute = int(minutes(moment["eval_time"]))
    found = Counter(
        (rule["alert"], dict(labels).get("stream")) for rule in RULES for labels in firing(rule, series, minute)
    )
    assert found == expected_alerts(moment)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_is_seen_to_fire_and_not_to_fire(rule: dict[str, Any]) -> None:
    fires = [any(name == rule["alert"] for name, _ in expected_alerts(moment)) for _, moment in MOMENTS]
    assert any(fires)
    assert not all(fires)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH; the rules are tried without it")
@pytest.mark.parametrize("command", [["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]])
def test_prometheus_agrees(command: list[str]) -> None:
    done = run_guarded(["promtool", *command], cwd=FOLDER, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_rules_use_metrics_labels_and_states_that_exist(rule: dict[str, Any]) -> None:
    exposed = set()
    for family in REGISTRY.collect():
        exposed.add(f"{family.name}_total" if family.type == "counter" else family.name)
    named = re.findall(r"tailrace_\w+", rule["expr"])
    assert set(named) <= exposed
    assert named or rule["alert"] == "TailraceDown"
    assert set(re.findall(r'state="(\w+)"', rule["expr"])) <= {state.value for state in State}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "next"}


def test_thresholds_are_the_defaults_of_the_settings() -> None:
    rules = {rule["alert"]: rule["expr"] for rule in RULES}
    defaults = MonitorSettings()
    assert f"<= {1 - defaults.warn_ratio:g}" in rules["TailraceHeadroomLow"]
    assert f"<= {1 - defaults.critical_ratio:g}" in rules["TailraceHeadroomCritical"]
    assert f"< {defaults.critical_forecast_seconds:g}" in rules["TailraceHistoryLostSoon"]
    assert f"< {defaults.warn_forecast_seconds:g}" in rules["TailraceHistoryLostToday"]
    assert f"tailrace_position_age_seconds > {defaults.behind_seconds:g}" in rules["TailraceHistoryLostSoon"]
