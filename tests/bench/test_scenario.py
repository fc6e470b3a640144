"""A scenario's run: turns alternate, failures and the end of the time leave what was measured, processes end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.accounting import Meter, cpu_seconds, tree_of
from bench.contestant import Contestant, ContestantFailed, LineProcess, NotInTime, ProcessContestant, Unavailable
from bench.result import Result, ScenarioResult
from bench.scenario import Claim, Goal, OutOfTime, Scenario, carry_out

from bench_results import sample_result
from processes import is_running
from tailrace.owned import GuardedProcess, run_guarded
from waiting import SECONDS

ROOT = Path(__file__).resolve().parents[2]


class Scripted(Contestant):
    """Gives what it was told to give, and keeps a diary."""

    def __init__(self, name: str, diary: list[str], *, fails_at: int = 99, **options: object) -> None:
        super().__init__(name, **options)  # type: ignore[arg-type]
        self._diary = diary
        self._fails_at = fails_at
        self._turns = 0

    def launch(self, folder: Path) -> None:
        self._diary.append(f"{self.name} starts")

    def run(self, meter: Meter) -> dict[str, float]:
        self._turns += 1
        self._diary.append(self.name)
        if self._turns == self._fails_at:
            raise ContestantFailed("it broke")
        return {"rate": 10.0 * len(self.name)}

    def close(self) -> None:
        self._diary.append(f"{self.name} ends")


def make_scenario(out: Path | None = None, *, budget: float = 60.0, rounds: int = 3, only: str = "") -> Scenario:
    result = ScenarioResult("drain", "a title", parameters={"rounds": rounds})
    run = sample_result()
    run.scenarios = [result]
    return Scenario(run, result, budget=budget, only=only, out=out)


def test_contestants_take_turns_in_alternating_order() -> None:
    diary: list[str] = []
    scenario = make_scenario()
    one, other = Scripted("a", diary), Scripted("bb", diary, warm_ups=1)
    scenario.folder = Path()
    with scenario.contestants([one, other]) as started:
        scenario.interleave(started, Meter({}))
    assert diary == ["a starts", "bb starts", "bb", "a", "bb", "bb", "a", "a", "bb", "bb ends", "a ends"]
    assert [len(each.rounds) for each in scenario.result.measurements] == [3, 3], "the warm-up does not count"


def test_one_that_fails_keeps_its_rounds_and_leaves_the_others_alone(tmp_path: Path) -> None:
    diary: list[str] = []
    scenario = make_scenario(tmp_path / "out.json")

    def body(running: Scenario) -> None:
        made = [Scripted("a", diary, fails_at=2), Scripted("bb", diary), Unavailable("ccc", "no JDK")]
        running.claims = [Claim("bb", "a")]
        with running.contestants(made) as started:
            running.interleave(started, Meter({}))

    assert carry_out(scenario, body) == 0
    found = Result.read(tmp_path / "out.json").scenarios[0]
    assert {one.contestant: (len(one.rounds), one.problem) for one in found.measurements} == {
        "a": (1, "it broke"), "bb": (3, None), "ccc": (0, "no JDK"),
    }  # fmt: skip
    assert found.status == "partial"
    assert found.ratios[0].value == 2.0


def test_the_end_of_the_time_leaves_what_was_measured(tmp_path: Path) -> None:
    scenario = make_scenario(tmp_path / "out.json")

    def body(running: Scenario) -> None:
        running.measurement("a", "drain").rounds.append({"rate": 2.0})
        running.measurement("b", "drain").rounds.append({"rate": 1.0})
        running.claims = [Claim("a", "b", goal=3.0)]
        raise OutOfTime("the budget is spent")

    assert carry_out(scenario, body) == 0
    found = Result.read(tmp_path / "out.json").scenarios[0]
    assert (found.status, found.reason) == ("partial", "the budget is spent")
    assert [(one.value, one.is_met) for one in found.ratios] == [(2.0, False)]


def test_no_turn_begins_after_the_budget() -> None:
    diary: list[str] = []
    scenario = make_scenario(budget=0.0)
    scenario.folder = Path()
    with pytest.raises(OutOfTime), scenario.contestants([Scripted("a", diary)]) as started:
        scenario.interleave(started, Meter({}))
    assert diary == ["a ends"]


def test_an_error_of_ours_is_a_failure(tmp_path: Path) -> None:
    scenario = make_scenario(tmp_path / "out.json")

    def body(_: Scenario) -> None:
        raise RuntimeError("no server")

    assert carry_out(scenario, body) == 1
    assert Result.read(tmp_path / "out.json").scenarios[0].reason == "RuntimeError: no server"


def test_only_the_wanted_take_part() -> None:
    diary: list[str] = []
    scenario = make_scenario(only="^b")
    scenario.folder = Path()
    with scenario.contestants([Scripted("a", diary), Scripted("b", diary)]) as started:
        assert [one.name for one in started] == ["b"]


def test_less_is_better_where_it_is() -> None:
    scenario = make_scenario()
    for name, used in (("a", 2.0), ("b", 6.0)):
        scenario.measurement(name, "drain").rounds.append({"tool_us": used})
    scenario.claims = [Claim("a", "b", "tool_us")]
    scenario.conclude()
    assert scenario.result.ratios[0].value == 3.0


def test_a_goal_without_a_rival_is_a_median() -> None:
    scenario = make_scenario()
    scenario.measurement("a", "drain").rounds.extend({"p50_ms": value} for value in (9.0, 1.0, 2.0))
    scenario.goals = [
        Goal("a", "p50_ms", 2.0, "drain"),
        Goal("a", "rate", 1.0, "drain"),
        Goal("b", "rate", 1.0, "drain"),
    ]
    scenario.conclude()
    assert [(one.value, one.is_met) for one in scenario.result.targets] == [(2.0, True)], "no others were measured"


# --- processes


SPEAKER = """
import sys
print("@ready", flush=True)
while sys.stdin.readline() == "go\\n":
    print("@begin", flush=True)
    assert sys.stdin.readline() == "on\\n"
    print("@warm 0 7.0", flush=True)
    print("chatter", flush=True)
    print("@warm 40 8.0", flush=True)
    print("@done 100 8.5", flush=True)
"""


def test_a_program_is_measured_from_its_last_warm_on(tmp_path: Path) -> None:
    one = ProcessContestant("speaker", [sys.executable, "-c", SPEAKER])
    one.launch(tmp_path)
    one.wait_ready()
    try:
        found = one.run(Meter({"server": [os.getpid()]}))
    finally:
        one.close()
    assert found["rate"] == 60 / 0.5
    assert found["peak_mb"] > 1
    assert found["server_us"] >= 0
    assert "chatter" in (tmp_path / "speaker.log").read_text()


def test_a_program_that_ends_says_why(tmp_path: Path) -> None:
    one = ProcessContestant("broken", [sys.executable, "-c", "raise SystemExit('no such jar')"])
    one.launch(tmp_path)
    with pytest.raises(ContestantFailed, match="no such jar"):
        one.wait_ready()
    one.close()


def test_a_silent_program_is_not_waited_for_longer_than_said(tmp_path: Path) -> None:
    process = LineProcess([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log")
    try:
        with pytest.raises(NotInTime):
            process.wait_for("ready", 0.1)
        assert not process.has_said("ready", 0.1)
    finally:
        process.close()


def test_contestants_end_with_their_parent(tmp_path: Path) -> None:
    """However the parent ends: here it is killed."""
    script = (
        "import sys, time; from pathlib import Path; from bench.contestant import LineProcess\n"
        f"p = LineProcess([sys.executable, '-c', 'import time; time.sleep(600)'], Path({str(tmp_path / 'log')!r}))\n"
        "print(p.pid, flush=True); time.sleep(600)"
    )
    parent = GuardedProcess([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate(timeout=SECONDS)
    deadline = time.monotonic() + 200
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)


def test_the_cpu_of_another_process_and_its_children_is_known() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\nimport sys; sys.stdin.read()"
    # The kernel gives it in two numbers of hundredths, rounded down.
    rounding = 2 / os.sysconf("SC_CLK_TCK")
    before = cpu_seconds(os.getpid())
    with GuardedProcess(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert process.program_pid in tree_of(os.getpid())
        assert cpu_seconds(process.program_pid) >= 0.3 - rounding
        process.communicate()
    assert cpu_seconds(process.program_pid) == 0.0
    # What ended children used is not forgotten.
    assert cpu_seconds(os.getpid()) - before >= 0.3 - rounding


# --- a real one, small


@pytest.mark.timeout(900)
def test_a_real_scenario_in_small(tmp_path: Path) -> None:
    """Engine, driver and the raw loops drain a real server, in turns, and agree about what there was."""
    out = tmp_path / "result.json"
    sizes = ["--set", "events=2000", "--set", "rounds=2"]
    only = ["--only", "^(raw getMore loop|raw oplog scan|engine|driver, decoded|pymongo watch..)$"]
    command = [sys.executable, "-m", "bench.drain", "--mode", "tiny", *sizes, *only, "--out", str(out)]
    done = run_guarded(command, cwd=ROOT, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stdout + done.stderr
    scenario = Result.read(out).scenarios[0]
    assert scenario.status == "done", scenario.reason
    assert {one.contestant: len(one.rounds) for one in scenario.measurements} == {
        "raw getMore loop": 2, "engine": 2, "raw oplog scan": 2, "driver, decoded": 2, "pymongo watch()": 2,
    }  # fmt: skip
    for one in scenario.measurements:
        for each in one.rounds:
            assert each["rate"] > 0
            assert each["mongod_us"] >= 0, "less than a hundredth of a second is none"
            assert each["peak_mb"] > 1
    assert {one.name for one in scenario.ratios} >= {"engine / raw getMore loop, rate"}
    assert json.loads(out.read_text())["schema"] == 1
