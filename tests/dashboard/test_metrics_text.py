"""Numbers of a Prometheus endpoint, and rates that survive a restart of what they count."""

from __future__ import annotations

from tailrace.dashboard.sources.metrics_text import Metrics, Rates

TEXT = """# TYPE tailrace_events_total counter
tailrace_events_total{stream="a",op="insert",namespace="s.x"} 5
tailrace_events_total{stream="a",op="delete",namespace="s.x"} 2
tailrace_events_total{stream="b",op="insert",namespace="s.y"} 1
# TYPE python_info gauge
python_info 1
"""


def test_sums_by_labels() -> None:
    metrics = Metrics.parse(TEXT)
    assert metrics.total("tailrace_events_total") == 8
    assert metrics.total("tailrace_events_total", stream="a") == 7
    assert metrics.by("tailrace_events_total", "op") == {("insert",): 6, ("delete",): 2}
    assert metrics.values("stream") == ["a", "b"]
    assert "python_info" not in metrics.samples
    assert metrics.total("missing") == 0


def test_a_rate_is_taken_over_the_last_seconds() -> None:
    rates = Rates(seconds=4)
    assert rates.per_second("a", 100, 10.0) == 0
    assert rates.per_second("a", 110, 11.0) == 10
    assert [rates.per_second("a", 110, at) for at in (13.0, 15.0)] == [10 / 3, 0]


def test_a_counter_that_begins_anew_is_no_step_back() -> None:
    rates = Rates()
    rates.per_second("a", 1_000, 10.0)
    assert rates.per_second("a", 3, 11.0) == 0
    assert rates.per_second("a", 13, 12.0) == 10


def test_keys_without_end_do_not_fill_the_memory() -> None:
    rates = Rates()
    for number in range(10_000):
        rates.per_second(number, 1, 1.0)
    assert len(rates._observed) <= 2_000
