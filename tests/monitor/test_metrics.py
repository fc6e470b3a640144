"""The metrics as Prometheus sees them, and their documentation against the code."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import yaml
from bson import Timestamp
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from tailrace.monitor import metrics, serve_endpoint
from tailrace.monitor.liveness import State
from tailrace.monitor.metrics import StreamMetrics, show_lag, show_oplog

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "metrics.md").read_text()


def scrape(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of the endpoint by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as response:
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_a_stream_reports_is_what_the_endpoint_shows() -> None:
    stream = StreamMetrics("shown")
    stream.batch({("insert", "shop.orders"): 3, ("delete", "shop.orders"): 1}, size=1_200, commit_seconds=0.02)
    stream.batch({}, size=0)
    stream.error("sink-unavailable")
    stream.dead_letter("record-refused")
    stream.gap()
    stream.state(State.LIVE)
    stream.state(State.BEHIND)
    stream.position(Timestamp(1_700_000_000, 5))
    stream.buffer(10, 100)
    show_lag("shown", "rs0", age=12, headroom=0.9, until_lost=None)
    show_lag("shown", "rs1", age=12, headroom=0.4, until_lost=3_600)
    show_oplog("rs9", window=86_400, used_bytes=5, limit_bytes=6)
    with serve_endpoint(0) as port:
        shown = scrape(port)

    def value(name: str, **labels: str) -> float:
        return shown[name, tuple(sorted(({"stream": "shown"} | labels).items()))]

    assert value("tailrace_events_total", op="insert", namespace="shop.orders") == 3
    assert value("tailrace_events_total", op="delete", namespace="shop.orders") == 1
    assert value("tailrace_bytes_total") == 1_200
    assert value("tailrace_batches_total") == 2
    assert value("tailrace_commit_seconds_count") == 1
    assert value("tailrace_commit_seconds_sum") == 0.02
    assert value("tailrace_errors_total", code="sink-unavailable") == 1
    assert value("tailrace_dead_letters_total", cause="record-refused") == 1
    assert value("tailrace_gaps_total") == 1
    assert {state: value("tailrace_state", state=state) for state in State} == {
        state: float(state is State.BEHIND) for state in State
    }
    assert value("tailrace_position_timestamp_seconds") == 1_700_000_000
    assert (value("tailrace_buffer_bytes"), value("tailrace_buffer_limit_bytes")) == (10, 100)
    assert value("tailrace_position_age_seconds", shard="rs0") == 12
    assert value("tailrace_headroom_ratio", shard="rs1") == 0.4
    assert value("tailrace_seconds_until_history_lost", shard="rs0") == float("inf")
    assert value("tailrace_seconds_until_history_lost", shard="rs1") == 3_600
    assert shown["tailrace_oplog_window_seconds", (("shard", "rs9"),)] == 86_400
    assert shown["process_resident_memory_bytes", ()] > 0


def test_counters_are_there_from_the_start_and_gauges_are_not() -> None:
    """An absent counter hides its first step from `rate()`; a gauge at 0 would look like a position in 1970."""
    StreamMetrics("fresh")
    with serve_endpoint(0) as port:
        names = {name for name, labels in scrape(port) if ("stream", "fresh") in labels}
    counters = ("bytes", "batches", "gaps", "dead_letters")
    assert {f"tailrace_{name}_total" for name in counters} <= names
    assert not names & {"tailrace_position_timestamp_seconds", "tailrace_buffer_bytes", "tailrace_state"}


def defined_metrics() -> dict[str, tuple[str, str, str]]:
    """What the code defines: name -> type, labels, meaning."""
    result = {}
    for value in vars(metrics).values():
        if isinstance(value, Counter | Gauge | Histogram):
            family = value.describe()[0]
            name = f"{family.name}_total" if family.type == "counter" else family.name
            result[name] = (family.type, ", ".join(value._labelnames), family.documentation)
    return result


def test_the_documentation_lists_exactly_the_metrics_there_are() -> None:
    rows = re.findall(r"^\| `(tailrace_\w+)` \| (\w+) \| ([\w, ]+) \| (.+) \|$", DOCUMENT, re.MULTILINE)
    assert {name: tuple(rest) for name, *rest in rows} == defined_metrics()


def test_the_documentation_lists_exactly_the_states_there_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", DOCUMENT, re.MULTILINE)
    source = (ROOT / "src" / "tailrace" / "monitor" / "liveness.py").read_text()
    meanings = re.findall(r'^    \w+ = "(\w+)"\n    """(.+)"""$', source, re.MULTILINE)
    assert rows == meanings
    assert [name for name, _ in rows] == [state.value for state in State]


def test_the_documentation_lists_exactly_the_alerts_there_are() -> None:
    rows = re.findall(r"^\| (Tailrace\w+) \| (\w+) \|", DOCUMENT, re.MULTILINE)
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
    alerts = [(rule["alert"], rule["labels"]["severity"]) for group in rules["groups"] for rule in group["rules"]]
    assert rows == alerts
