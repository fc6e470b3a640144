"""The one form in which results are kept: what ran, on what, how often, and what came out.

A result is a JSON document; `Result.from_json` refuses what does not fit. Each measurement keeps its rounds, so that a
median never stands without its spread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

SCHEMA = 1
LOWER_IS_BETTER = ("_us", "_ms", "_mb", "_bytes")
"""The ends of metrics' names of which less is better; of all others more is better."""


@dataclass(slots=True)
class Measurement:
    """One contestant in one group, over its rounds."""

    contestant: str
    group: str
    """What it is comparable with, such as `drain` or `watchers`."""
    x: float | None = None
    """Where it stands on the axis, in a group that is a line."""
    peer: bool = False
    """Whether it is somebody else's."""
    settings: dict[str, str] = field(default_factory=dict)
    rounds: list[dict[str, float]] = field(default_factory=list)
    problem: str | None = None
    """Why it was left out or ended early."""

    def median(self, metric: str) -> float | None:
        """The median over the rounds."""
        values = self.values(metric)
        return median(values) if values else None

    def values(self, metric: str) -> list[float]:
        """What each round gave."""
        return [one[metric] for one in self.rounds if metric in one]

    def spread(self, metric: str) -> tuple[float, float] | None:
        """The least and the greatest over the rounds."""
        values = self.values(metric)
        return (min(values), max(values)) if values else None


@dataclass(slots=True)
class Ratio:
    """Ours against one rival by one metric; above 1 ours is better."""

    name: str
    ours: str
    rival: str
    metric: str
    group: str
    value: float
    peer: bool
    """Whether the rival is a peer, and no limit of the server or part of ours."""
    goal: float | None = None
    x: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        return None if self.goal is None else self.value >= self.goal


@dataclass(slots=True)
class Target:
    """A figure of ours that is to be reached, where no rival does the same."""

    name: str
    value: float
    goal: float
    metric: str

    @property
    def is_met(self) -> bool:
        """Whether it is reached."""
        return self.value <= self.goal if is_lower_better(self.metric) else self.value >= self.goal


@dataclass(slots=True)
class Latencies:
    """Percentiles of one contestant's latencies on one hop, in milliseconds, of all rounds together."""

    contestant: str
    group: str
    count: int
    percentiles: list[tuple[float, float]]
    peer: bool = False


@dataclass(slots=True)
class Fit:
    """How a cost grows: proportional to x to the power of `exponent`."""

    contestant: str
    group: str
    metric: str
    exponent: float
    points: int


@dataclass(slots=True)
class ScenarioResult:
    """What one scenario gave."""

    name: str
    title: str
    status: str = "running"
    """running, done, partial (out of time, or a contestant failed) or failed."""
    reason: str = ""
    seconds: float = 0.0
    seed: int = 1
    parameters: dict[str, Any] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    latencies: list[Latencies] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def find(self, contestant: str, group: str, x: float | None = None) -> Measurement | None:
        """One measurement."""
        wanted = (contestant, group, x)
        return next((one for one in self.measurements if (one.contestant, one.group, one.x) == wanted), None)

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> ScenarioResult:
        """Read what `asdict` gave."""
        parts = {
            "measurements": Measurement, "ratios": Ratio, "targets": Target, "latencies": Latencies, "fits": Fit,
        }  # fmt: skip
        lists = {name: [kind(**one) for one in form.get(name, [])] for name, kind in parts.items()}
        return cls(**{**form, **lists})


@dataclass(slots=True)
class Result:
    """A whole run."""

    mode: str
    started: str
    commit: str
    dirty: bool
    machine: dict[str, Any]
    versions: dict[str, str]
    seconds: float = 0.0
    scenarios: list[ScenarioResult] = field(default_factory=list)
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Write it, with the medians and spreads beside the rounds for other readers."""
        form = asdict(self)
        for scenario, shown in zip(self.scenarios, form["scenarios"], strict=True):
            for one, its in zip(scenario.measurements, shown["measurements"], strict=True):
                metrics = sorted({metric for each in one.rounds for metric in each})
                its["medians"] = {metric: one.median(metric) for metric in metrics}
                its["spreads"] = {metric: one.spread(metric) for metric in metrics}
        return json.dumps(form, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Read what `to_json` wrote; the medians are computed from the rounds."""
        form = json.loads(text)
        if form.get("schema") != SCHEMA:
            raise ValueError(f"a result of schema {form.get('schema')}, not {SCHEMA}")
        for scenario in form["scenarios"]:
            for one in scenario["measurements"]:
                one.pop("medians", None), one.pop("spreads", None)
        return cls(**{**form, "scenarios": [ScenarioResult.from_json(one) for one in form["scenarios"]]})

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read a file."""
        return cls.from_json(path.read_text())

    def ratios(self) -> dict[str, Ratio]:
        """All ratios by scenario and name."""
        return {f"{scenario.name}: {one.name}": one for scenario in self.scenarios for one in scenario.ratios}


def is_lower_better(metric: str) -> bool:
    """Whether less of it is better."""
    return metric.endswith(LOWER_IS_BETTER)
