"""The report of a result: ratios first, and before them where a peer is better.

python -m bench.report [RESULT.json] [--docs]

Writes bench/report.html and bench/report.md, and with --docs also docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from bench.plot import Bar, bars, figure, lines, percentile_lines
from bench.result import Measurement, Ratio, Result, ScenarioResult

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULT = HERE / "result.json"
_SHOWN = ("rate", "tool_us", "mongod_us", "broker_us", "redis_us", "peak_mb", "wire_bytes", "inserts", "delivered")
_NAMES = {
    "rate": "events/s", "tool_us": "CPU us/event, tool", "mongod_us": "CPU us/event, mongod",
    "broker_us": "CPU us/event, broker", "redis_us": "CPU us/event, Redis", "peak_mb": "peak MB",
    "wire_bytes": "bytes/event to and from mongod", "inserts": "inserts/s of the writer",
    "delivered": "events/s delivered", "p50_ms": "p50 ms", "p95_ms": "p95 ms", "p99_ms": "p99 ms", "max_ms": "max ms",
}  # fmt: skip
_PERCENTILES = (50.0, 95.0, 99.0, 100.0)

Plots = dict[str, str]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, nargs="?", default=RESULT)
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    write(Result.read(given.result), HERE, docs=ROOT / "docs" if given.docs else None)


def write(result: Result, folder: Path, *, docs: Path | None) -> list[Path]:
    """Write the report into a folder, and as a page into the documentation; gives the files."""
    plots = dict(all_plots(result))
    pages = folder / "plots"
    written = [_put(pages / f"{name}.svg", plot) for name, plot in plots.items()]
    written.append(_put(folder / "report.md", markdown(result, plots, "plots")))
    written.append(_put(folder / "report.html", html(result, plots)))
    if docs:
        written += [_put(docs / "benchmarks" / f"{name}.svg", plot) for name, plot in plots.items()]
        written.append(_put(docs / "benchmarks.md", markdown(result, plots, "benchmarks")))
    return written


def _put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- plots


def all_plots(result: Result) -> Iterator[tuple[str, str]]:
    """Every plot by the name of its file."""
    for scenario in result.scenarios:
        for group in groups(scenario):
            for metric, plot in plots_of(scenario, group):
                if plot:
                    yield file_name(scenario.name, group, metric), plot


def plots_of(scenario: ScenarioResult, group: str) -> Iterator[tuple[str, str]]:
    """The plots of one group: bars, or lines where it has an axis, or percentiles."""
    members = [one for one in scenario.measurements if one.group == group and one.rounds]
    latencies = [one for one in scenario.latencies if one.group == group]
    if latencies:
        series = {one.contestant: [(cut, ms) for cut, ms in one.percentiles] for one in latencies}
        yield "percentiles", percentile_lines(f"Latency {group}", series, "milliseconds")
    elif any(one.x is not None for one in members):
        for metric in ("rate", "inserts", "tool_us", "mongod_us", "redis_us", "peak_mb"):
            series = {}
            for one in members:
                value = one.median(metric)
                if one.x is not None and value:
                    series.setdefault(one.contestant, []).append((one.x, value))
            if any(len(points) > 1 for points in series.values()):
                yield metric, lines(f"{group}: {_NAMES[metric]}", series, group, _NAMES[metric])
    else:
        for metric in ("rate", "tool_us"):
            shown = [bar for one in members if (bar := _bar(one, metric))]
            if shown:
                yield metric, bars(f"{group}: {_NAMES[metric]}", shown)


def _bar(one: Measurement, metric: str) -> Bar | None:
    value, spread = one.median(metric), one.spread(metric)
    return Bar(one.contestant, value, *spread, one.peer) if value is not None and spread is not None else None


def groups(scenario: ScenarioResult) -> list[str]:
    """The groups of a scenario, in the order in which they were measured."""
    return list(dict.fromkeys(one.group for one in scenario.measurements if one.rounds))


def file_name(*parts: str) -> str:
    """A name for a file."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


# --- the page


def markdown(result: Result, plots: Plots, folder: str) -> str:
    """The whole report; plots are files in `folder`."""
    lines_of = [
        "# Benchmarks",
        "",
        *_heading(result),
        "",
        "A ratio is of two contestants of the same run on the same server and data; above 1 tailrace is better.",
        "Contestants take turns, and medians over the rounds stand beside their least and greatest.",
        "",
        *_where_peers_win(result),
        "",
        *_goals(result),
        "",
        *_costs(result),
    ]
    for scenario in result.scenarios:
        lines_of += ["", *_scenario(scenario, plots, folder)]
    return "\n".join(lines_of).rstrip() + "\n"


def _heading(result: Result) -> list[str]:
    machine = result.machine
    dirty = " with changes" if result.dirty else ""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return [
        f"{result.started[:16].replace('T', ' ')} UTC, commit {result.commit}{dirty}, mode {result.mode}, "
        f"{result.seconds / 60:.1f} minutes.",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}; "
        f"load before the run {machine['load_before']}.",
        f"{versions}.",
        *(f"**{one.name}: {one.status}**: {one.reason}" for one in result.scenarios if one.status != "done"),
    ]


def _where_peers_win(result: Result) -> list[str]:
    lost = sorted(
        ((name, one) for name, one in result.ratios().items() if one.peer and one.value < 1),
        key=lambda pair: pair[1].value,
    )
    head = ["## Where a peer is better", ""]
    if not lost:
        return [*head, "Nowhere in this run."]
    return [*head, *table(["", "ratio"], [[name, f"**{one.value:.2f}**"] for name, one in lost])]


def _goals(result: Result) -> list[str]:
    rows = [
        [name, f"**{one.value:.2f}**", f"{one.goal:g}", "met" if one.is_met else "**not met**"]
        for name, one in result.ratios().items()
        if one.goal is not None
    ]
    figures = [
        [f"{where}: {one.name}", f"**{one.value:,.0f}**", f"{one.goal:,g}", "met" if one.is_met else "**not met**"]
        for where, targets in ((each.name, each.targets) for each in result.scenarios)
        for one in targets
    ]
    lines_of = ["## Goals", "", *(table(["", "ratio", "goal", ""], rows) if rows else ["No goal was measured."])]
    if figures:
        lines_of += ["", "Where no rival does the same:", "", *table(["", "measured", "goal", ""], figures)]
    return lines_of


def _costs(result: Result) -> list[str]:
    seconds, others = ("tool_us", "mongod_us", "broker_us"), ("peak_mb", "wire_bytes")
    rows = [
        [
            one.contestant,
            *(f"{value / 10:.2f}" if (value := one.median(metric)) else "" for metric in seconds),
            *(f"{value:,.0f}" if (value := one.median(metric)) else "" for metric in others),
        ]
        for scenario in result.scenarios
        if scenario.name in ("drain", "kafka")
        for one in scenario.measurements
        if one.x is None and one.rounds
    ]
    if not rows:
        return []
    head = ["", "tool", "mongod", "broker", "peak MB of the tool", "bytes/event to and from mongod"]
    return ["## Cost: CPU seconds per 100,000 events", "", *table(head, rows)]


def _scenario(scenario: ScenarioResult, plots: Plots, folder: str) -> list[str]:
    parameters = ", ".join(f"{name} {value}" for name, value in scenario.parameters.items())
    page = [
        f"## {scenario.name}: {scenario.title}",
        "",
        f"{parameters}; seed {scenario.seed}; {scenario.seconds:.0f} s.",
    ]
    page += [f"{note}." for note in scenario.notes]
    if scenario.ratios:
        rows = [[one.name, f"**{one.value:.2f}**", *_absolute(scenario, one)] for one in scenario.ratios]
        page += ["", *table(["ours / rival", "ratio", "ours", "rival"], rows)]
    for group in groups(scenario):
        page += ["", f"### {group}", "", *_measurements(scenario, group)]
        for metric, _ in plots_of(scenario, group):
            name = file_name(scenario.name, group, metric)
            if name in plots:
                page += ["", f"![{group}, {_NAMES.get(metric, metric)}]({folder}/{name}.svg)"]
    if scenario.fits:
        rows = [[one.group, one.contestant, _NAMES[one.metric], f"{one.exponent:.2f}"] for one in scenario.fits]
        page += ["", "How cost grows: proportional to x to the power of", "", *table(["x", "", "cost", "power"], rows)]
    settings = [[one.contestant, _settings(one)] for one in scenario.measurements if one.peer and one.settings]
    if settings:
        page += ["", "What the peers were set to", "", *table(["", "settings"], settings)]
    left_out = [[one.contestant, one.problem] for one in scenario.measurements if one.problem]
    if left_out:
        page += ["", "Left out or ended early", "", *table(["", "why"], left_out)]
    return page


def _settings(one: Measurement) -> str:
    """What was chosen; where the server is and where a run begins says nothing."""
    hidden = ("uri", "connection", "start.", "startup.mode.timestamp")
    chosen = {key: value for key, value in one.settings.items() if not any(word in key for word in hidden)}
    return ", ".join(f"`{key}={value}`" for key, value in chosen.items())


def _absolute(scenario: ScenarioResult, ratio: Ratio) -> list[str]:
    found = (scenario.find(name, ratio.group, ratio.x) for name in (ratio.ours, ratio.rival))
    return [figure(value) if one and (value := one.median(ratio.metric)) else "" for one in found]


def _measurements(scenario: ScenarioResult, group: str) -> list[str]:
    members = [one for one in scenario.measurements if one.group == group and one.rounds]
    latencies = {one.contestant: one for one in scenario.latencies if one.group == group}
    if latencies:
        rows = [
            [name, *(f"{dict(one.percentiles)[cut]:.1f}" for cut in _PERCENTILES), str(one.count)]
            for name, one in latencies.items()
        ]
        return table(["ms", *("max" if cut == 100 else f"p{cut:g}" for cut in _PERCENTILES), "documents"], rows)
    metrics = [metric for metric in _SHOWN if any(one.median(metric) is not None for one in members)]
    rows = [
        [
            one.contestant if one.x is None else f"{one.contestant}, {figure(one.x)}",
            *(_with_spread(one, metric) for metric in metrics),
            str(len(one.rounds)),
        ]
        for one in members
    ]
    return table(["", *(_NAMES[metric] for metric in metrics), "rounds"], rows)


def _with_spread(one: Measurement, metric: str) -> str:
    value, spread = one.median(metric), one.spread(metric)
    if value is None or spread is None:
        return ""
    return figure(value) if spread[0] == spread[1] else f"{figure(value)} ({figure(spread[0])}..{figure(spread[1])})"


def table(head: Sequence[str], rows: Sequence[Sequence[str | None]]) -> list[str]:
    """A table of Markdown."""
    made = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return made + [f"| {' | '.join(_cell(one) for one in row)} |" for row in rows]


def _cell(text: str | None) -> str:
    return " ".join((text or "").replace("|", "/").split())[:600]


# --- HTML: the same page, with the plots in it


def html(result: Result, plots: Plots) -> str:
    """The report as one file."""
    body = []
    rows: list[str] = []
    for line in [*markdown(result, plots, "").splitlines(), ""]:
        if line.startswith("|"):
            rows.append(line)
            continue
        if rows:
            body.append(_html_table(rows))
            rows = []
        if line.startswith("!["):
            body.append(plots[line.rpartition("/")[2].removesuffix(".svg)")])
        elif line.startswith("#"):
            marks, _, text = line.partition(" ")
            body.append(f"<h{len(marks)}>{_inline(text)}</h{len(marks)}>")
        elif line:
            body.append(f"<p>{_inline(line)}</p>")
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}"
        "table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ddd;padding:.25rem .6rem;text-align:left}"
        "svg{max-width:100%;height:auto;display:block;margin:1rem 0}code{background:#f4f4f4}"
    )
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>tailrace benchmarks</title><style>{style}</style>"
    return head + "\n".join(body) + "</html>\n"


def _html_table(rows: Sequence[str]) -> str:
    cells = [[_inline(cell.strip()) for cell in row.strip("|").split("|")] for row in rows]
    head, _, *rest = cells
    made = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rest)
    return f"<table><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>{made}</table>"


def _inline(text: str) -> str:
    shown = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text, quote=False))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", shown)


if __name__ == "__main__":
    main()
