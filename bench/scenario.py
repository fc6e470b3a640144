"""One scenario's run: its budget of time, its rounds, and its result, which is written after every measurement."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.accounting import Meter
from bench.contestant import Contestant, ContestantFailed, Unavailable
from bench.figures import exponent_of, percentiles
from bench.machine import new_result
from bench.result import Fit, Latencies, Measurement, Ratio, Result, ScenarioResult, Target, is_lower_better
from tailrace.errors import TailraceError

Sizes = Mapping[str, Mapping[str, Any]]
"""The parameters of a scenario, by mode: tiny (a proof that it runs), quick and full."""


class OutOfTime(Exception):
    """The scenario's budget is spent."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio that is computed when all rounds are done."""

    ours: str
    rival: str
    metric: str = "rate"
    goal: float | None = None
    group: str = "drain"
    x: float | None = None
    text: str | None = None
    """How the ratio is called; by default it says what is divided."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A median of ours that is to be reached, where no rival does the same."""

    contestant: str
    metric: str
    value: float
    group: str


class Scenario:
    """Collects what a scenario measures."""

    def __init__(self, run: Result, result: ScenarioResult, *, budget: float, only: str, out: Path | None) -> None:
        self._run = run
        self.result = result
        self._began = time.monotonic()
        self._budget = budget
        self._only = re.compile(only) if only else None
        self._out = out
        self._parameters = result.parameters
        self.folder: Path
        self.claims: list[Claim] = []
        """The ratios that are computed at the end, also of a run that was cut short."""
        self.goals: list[Goal] = []
        """The figures that are to be reached."""
        self.problems: list[str] = []
        """What went wrong with whole parts."""
        self.lines: list[tuple[str, str]] = []
        """Groups and metrics whose growth is fitted at the end."""

    def __getitem__(self, name: str) -> Any:
        """A parameter of this mode."""
        return self._parameters[name]

    @property
    def mode(self) -> str:
        """tiny, quick or full."""
        return self._run.mode

    @property
    def seconds_left(self) -> float:
        """What is left of the budget."""
        return self._budget - (time.monotonic() - self._began)

    def wants(self, name: str) -> bool:
        """Whether `--only` lets a contestant take part."""
        return self._only is None or self._only.search(name) is not None

    def note(self, text: str) -> None:
        """Say something that the reader of the figures should know."""
        say(f"  note: {text}")
        self.result.notes.append(text)

    def save(self) -> None:
        """Write what there is."""
        self.result.seconds = time.monotonic() - self._began
        self._run.seconds = self.result.seconds
        if self._out:
            new = self._out.with_suffix(".new")
            new.write_text(self._run.to_json())
            new.replace(self._out)

    @contextmanager
    def contestants(
        self, made: Sequence[Contestant | Unavailable], *, group: str = "drain"
    ) -> Iterator[list[Contestant]]:
        """Those that are wanted, started; one that does not start is left out with its reason. All end here."""
        with ExitStack() as running:
            started: list[Contestant] = []
            for one in made:
                if not self.wants(one.name):
                    continue
                if isinstance(one, Unavailable):
                    self._leave_out(one, group, one.reason)
                    continue
                running.callback(one.close)
                self._check_time()
                one.launch(self.folder)
                started.append(one)
            yield [one for one in started if self._is_ready(one, group)]

    def _is_ready(self, one: Contestant, group: str) -> bool:
        try:
            one.wait_ready()
        except (ContestantFailed, TailraceError) as failure:
            self._leave_out(one, group, str(failure))
            return False
        return True

    def attempt(self, part: Callable[..., None], *arguments: Any) -> None:
        """Do one part of the scenario; one that fails does not take the others with it."""
        try:
            part(self, *arguments)
        except (OutOfTime, KeyboardInterrupt):
            raise
        except Exception as error:
            traceback.print_exc()
            self.problems.append(f"{part.__name__}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")

    def interleave(
        self, contestants: Sequence[Contestant], meter: Meter, *, group: str = "drain", x: float | None = None
    ) -> None:
        """Let all take turns, in alternating order, so that other work of the machine falls on all alike."""
        failed: set[str] = set()
        for one in contestants:
            for _ in range(one.warm_ups):
                self._turn(one, meter, group, None, failed)
        for number in range(self["rounds"]):
            for one in contestants if number % 2 == 0 else reversed(contestants):
                measurement = self.measurement(one.name, group, x, peer=one.peer, settings=one.settings)
                self._turn(one, meter, group, measurement, failed)
            self.save()

    def _turn(self, one: Contestant, meter: Meter, group: str, into: Measurement | None, failed: set[str]) -> None:
        if one.name in failed:
            return
        self._check_time()
        try:
            found = one.run(meter)
        except ContestantFailed as failure:
            failed.add(one.name)
            self._leave_out(one, group, str(failure))
            return
        if into is not None:
            into.rounds.append(found)
            show(into.contestant, found)

    def _check_time(self) -> None:
        if self.seconds_left <= 0:
            raise OutOfTime(f"the budget of {self._budget:.0f} s is spent")

    def _leave_out(self, one: Contestant | Unavailable, group: str, reason: str) -> None:
        reason = " ".join(reason.split())[:600]
        say(f"  {one.name}: left out: {reason}")
        known = (each for each in self.result.measurements if (each.contestant, each.group) == (one.name, group))
        found = next(known, None) or self.measurement(one.name, group, peer=one.peer, settings=one.settings)
        found.problem = reason
        self.save()

    def measurement(
        self,
        contestant: str,
        group: str,
        x: float | None = None,
        *,
        peer: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> Measurement:
        """The measurement with this name, made when it is new."""
        found = self.result.find(contestant, group, x)
        if found is None:
            found = Measurement(contestant, group, x, peer, dict(settings or {}))
            self.result.measurements.append(found)
        return found

    def add_latencies(self, name: str, group: str, found: Sequence[float], *, peer: bool = False) -> None:
        """Keep the percentiles of all rounds of one contestant."""
        self.result.latencies.append(Latencies(name, group, len(found), percentiles(found), peer))

    def conclude(self) -> None:
        """Compute the ratios and the fits of what was measured."""
        for group, metric in self.lines:
            self._fit(group, metric)
        for one in self.claims:
            ours = self.result.find(one.ours, one.group, one.x)
            rival = self.result.find(one.rival, one.group, one.x)
            if ours is None or rival is None:
                continue
            mine, theirs = ours.median(one.metric), rival.median(one.metric)
            if not mine or not theirs:
                continue
            value = theirs / mine if is_lower_better(one.metric) else mine / theirs
            at = "" if one.x is None else f" at {one.x:g}"
            name = one.text or f"{one.ours} / {one.rival}, {one.metric}{at}"
            ratio = Ratio(name, one.ours, one.rival, one.metric, one.group, value, rival.peer, one.goal, one.x)
            self.result.ratios.append(ratio)
            verdict = "" if one.goal is None else f" (goal {one.goal:g}: {'met' if ratio.is_met else 'NOT MET'})"
            say(f"  {name}: {value:.2f}{verdict}")

        for goal in self.goals:
            found = self.result.find(goal.contestant, goal.group)
            value = found.median(goal.metric) if found is not None else None
            if value is not None:
                name = f"{goal.contestant} {goal.group}, {goal.metric}"
                self.result.targets.append(Target(name, value, goal.value, goal.metric))

    def _fit(self, group: str, metric: str) -> None:
        """Say for each line of a group how its cost grows with x."""
        names = dict.fromkeys(one.contestant for one in self.result.measurements if one.group == group)
        for name in names:
            lines = [one for one in self.result.measurements if one.group == group and one.contestant == name]
            points = [(one.x, found) for one in lines if one.x and (found := one.median(metric))]
            if len(points) >= 3:
                fit = Fit(name, group, metric, exponent_of(points), len(points))
                self.result.fits.append(fit)
                say(f"  {group}, {name}: {metric} grows with x to the power of {fit.exponent:.2f}")


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def show(name: str, found: Mapping[str, float]) -> None:
    """The figures of one round."""
    say(f"  {name:44} " + ", ".join(f"{metric} {short(value)}" for metric, value in found.items()))


def short(value: float) -> str:
    """A figure with as many digits as mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main(name: str, title: str, sizes: Sizes, body: Callable[[Scenario], None]) -> None:
    """The command line of a scenario."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=title)
    parser.add_argument("--mode", choices=list(sizes), default="quick")
    parser.add_argument("--only", default="", help="a regular expression of contestants")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds")
    parser.add_argument("--out", type=Path, help="where the result goes, as JSON")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another size")
    given = parser.parse_args()
    parameters: dict[str, Any] = {"rounds": 3, **sizes[given.mode]}
    for setting in given.set:
        key, _, value = setting.partition("=")
        parameters[key] = [int(one) for one in value.split(",")] if isinstance(parameters[key], list) else int(value)
    end_once()
    run = new_result(given.mode)
    result = ScenarioResult(name, title, parameters=parameters)
    run.scenarios.append(result)
    scenario = Scenario(run, result, budget=given.budget, only=given.only, out=given.out)
    say(f"{name}: {title} ({given.mode}: {', '.join(f'{key} {value}' for key, value in parameters.items())})")
    sys.exit(carry_out(scenario, body))


def end_once() -> None:
    """Let the first Ctrl-C or SIGTERM end what runs; further ones do not disturb the cleaning up."""

    def interrupt(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


def carry_out(scenario: Scenario, body: Callable[[Scenario], None]) -> int:
    """Run a scenario's body; whatever happens, what was measured is written."""
    result = scenario.result
    try:
        with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
            scenario.folder = Path(folder)
            body(scenario)
        failed = [f"{one.contestant}: {one.problem}" for one in result.measurements if one.problem]
        problems = scenario.problems + failed
        result.status = "partial" if problems else "done"
        result.reason = "; ".join(problems)[:2000]
    except OutOfTime as reason:
        result.status, result.reason = "partial", str(reason)
    except KeyboardInterrupt:
        result.status, result.reason = "partial", "it was interrupted"
        return 130
    except Exception as error:
        traceback.print_exc()
        result.status, result.reason = "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"[:2000]
    finally:
        scenario.conclude()
        scenario.save()
        say(f"{result.name}: {result.status} after {result.seconds:.0f} s {result.reason[:300]}")
    return 1 if result.status == "failed" else 0
