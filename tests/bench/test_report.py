"""The report: ratios first, and before them where a peer is better; plots are well-formed."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

from bench.plot import Bar, bars, lines, percentile_lines
from bench.report import all_plots, html, markdown, write

from bench_results import sample_result


def page() -> str:
    result = sample_result()
    return markdown(result, dict(all_plots(result)), "plots")


def test_it_begins_with_what_it_was_measured_on_and_where_a_peer_wins() -> None:
    parts = page().split("\n## ")
    assert "commit abc1234" in parts[0]
    assert "a cpu, 2 cores" in parts[0]
    assert parts[1].startswith("Where a peer is better")
    assert "engine / Debezium, CPU | **0.70**" in parts[1]
    assert "engine / limit" not in parts[1], "a limit is no peer"
    assert parts[2].startswith("Goals")


def test_goals_say_whether_they_are_met() -> None:
    assert "drain: engine / Debezium, rate | **2.00** | 2.5 | **not met** |" in page()
    assert "drain: engine / limit | **0.50** | 0.4 | met |" in page()


def test_so_do_figures_without_a_rival() -> None:
    assert "latency: driver to watcher, p50_ms | **2** | 2.5 | met |" in page()
    assert "latency: driver to watcher, rate | **1,900** | 2,000 | **not met** |" in page()


def test_nothing_is_hidden() -> None:
    text = page()
    assert "| Spark Connector | cannot be fetched |" in text, "who was left out, and why"
    assert "`max.batch.size=8192`" in text, "what the peers were set to"
    assert "200 (100..300)" in text, "the spread beside the median"
    assert "**drain: partial**" in text
    assert "| watchers | gateway | CPU us/event, mongod | 1.00 |" in text, "the fit"
    assert "| driver | 2.0 | 3.0 | 4.0 | 5.0 | 3 |" in text, "the percentiles"


def test_costs_are_seconds_per_hundred_thousand_events() -> None:
    assert "| engine | 1.00 | 0.50 |  |  | 500 |" in page()


def test_every_row_has_as_many_cells_as_its_head() -> None:
    width = 0
    for line in page().splitlines():
        cells = line.count("|") if line.startswith("|") else 0
        assert not (width and cells) or cells == width, line
        width = cells


def test_plots_are_xml_that_shows_every_contestant() -> None:
    drawn = [
        bars("rate", [Bar("ours & theirs", 2.0, 1.0, 3.0), Bar("<peer>", 1.0, 1.0, 1.0, is_peer=True)]),
        lines("growth", {"a": [(1, 1), (10, 5)], "b": [(1, 2)]}, "x", "y"),
        percentile_lines("latency", {"a": [(0.0, 1.0), (99.0, 3.0), (100.0, 9.0)]}, "ms"),
    ]
    for plot, names in zip(drawn, (["ours & theirs", "<peer>"], ["a", "b"], ["a"]), strict=True):
        texts = [node.text for node in ElementTree.fromstring(plot).iter() if node.tag.endswith("text")]
        assert set(names) <= set(texts)


def test_a_plot_without_points_is_none() -> None:
    assert lines("nothing", {"a": []}, "x", "y") == ""


def test_the_files_refer_to_each_other(tmp_path: Path) -> None:
    written = write(sample_result(), tmp_path / "bench", docs=tmp_path / "docs")
    assert {path.name for path in written} >= {"report.md", "report.html", "benchmarks.md"}
    for text in (tmp_path / "bench" / "report.md", tmp_path / "docs" / "benchmarks.md"):
        plots = [line.partition("](")[2].rstrip(")") for line in text.read_text().splitlines() if line.startswith("![")]
        assert plots
        assert all((text.parent / plot).exists() for plot in plots)


def test_the_page_is_one_file_with_the_plots_in_it() -> None:
    result = sample_result()
    text = html(result, dict(all_plots(result)))
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            tags.append(tag)

    Reader().feed(text)
    assert tags.count("svg") == len(dict(all_plots(result)))
    assert tags.count("table") >= 6
    assert "Debezium <engine>" not in text, "names are escaped"
