"""What dies is started again, what cannot live is stopped for good with its last words, and the end leaves nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.errors import PartGaveUp
from tailrace.retry import RetryPolicy
from tailrace.up.parts import LocalServer, Program, Stage
from tailrace.up.supervisor import Report, State, Supervisor
from waiting import wait_until

QUICK = RetryPolicy(first=0.02, longest=0.05, budget=0.3)
SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"


class Told:
    """What the supervisor told."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def __call__(self, report: Report) -> None:
        self.reports.append(report)

    def states(self, part: str) -> list[State]:
        return [report.state for report in self.reports if report.part == part]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Program]:
    def make(name: str, code: str = SLEEPER, stage: Stage = Stage.PIPELINE) -> Program:
        ready = lambda began, logged: "ready" in logged  # noqa: E731
        return Program(name, [sys.executable, "-c", code], log=tmp_path / f"{name}.log", ready=ready, stage=stage)

    return make


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_killed_part_is_started_again(told, program):
    with Supervisor(told, threading.Event()) as supervisor:
        supervisor.keep(program("sleeper"))
        assert supervisor.wait_ready()
        first = supervisor.pid_of("sleeper")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: told.states("sleeper").count(State.UP) == 2)
        second = supervisor.pid_of("sleeper")
        assert second != first
        assert supervisor.down == []
    assert is_gone(second)
    assert told.states("sleeper") == ["starting", "up", "down", "starting", "up", "stopped"]
    assert "killed by signal 9" in told.reports[2].message


def test_ready_is_what_was_logged_since_the_start(told, program, tmp_path):
    (tmp_path / "late.log").write_text("ready, said the run before\n")
    code = (
        f"import time, pathlib\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(.01)\n{SLEEPER}"
    )
    with Supervisor(told, threading.Event()) as supervisor:
        supervisor.keep(program("late", code))
        wait_until(lambda: supervisor.pid_of("late") > 0)
        assert told.states("late") == ["starting"]
        (tmp_path / "go").touch()
        assert supervisor.wait_ready()


def test_a_part_that_never_comes_up_ends_the_start_with_its_last_words(told, program):
    with Supervisor(told, threading.Event(), QUICK) as supervisor:
        supervisor.keep(program("sleeper"))
        supervisor.keep(program("broken", "print('my last words'); raise SystemExit(70)"))
        with pytest.raises(PartGaveUp, match=r"broken is stopped for good: .*times in a row; log: .*broken\.log"):
            supervisor.wait_ready()
    assert next(report for report in told.reports if report.state is State.GAVE_UP).message.endswith("my last words")
    assert told.states("broken").count(State.STARTING) >= 2
    assert told.states("sleeper")[-1] is State.STOPPED


def test_wrong_settings_are_not_tried_again(told, program):
    with Supervisor(told, threading.Event()) as supervisor:
        supervisor.keep(program("broken", "raise SystemExit(64)"))
        with pytest.raises(PartGaveUp, match="its settings are wrong"):
            supervisor.wait_ready()
    assert told.states("broken").count(State.STARTING) == 1


def test_a_part_that_is_given_up_later_leaves_the_others_running(told, program, tmp_path):
    once = f"import pathlib, sys; p = pathlib.Path({str(tmp_path / 'ran')!r})\nif p.exists(): sys.exit(70)\np.touch()\n"
    with Supervisor(told, threading.Event(), QUICK) as supervisor:
        supervisor.keep(program("sleeper"))
        supervisor.keep(program("fragile", once + SLEEPER))
        assert supervisor.wait_ready()
        os.kill(supervisor.pid_of("fragile"), signal.SIGKILL)
        wait_until(lambda: State.GAVE_UP in told.states("fragile"))
        assert supervisor.down == ["fragile"]
        assert [error.details["part"] for error in supervisor.failures] == ["fragile"]


def test_stages_are_stopped_one_after_the_other(told, program):
    with Supervisor(told, threading.Event()) as supervisor:
        for stage in reversed(Stage):
            supervisor.keep(program(stage.name, stage=stage))
        supervisor.wait_ready()
    stopped = [report.part for report in told.reports if report.state is State.STOPPED]
    assert stopped == ["LOAD", "PIPELINE", "SERVER"]


def test_stopping_during_the_start_ends_it_and_leaves_nothing(told, program):
    stopping = threading.Event()
    with Supervisor(told, stopping) as supervisor:
        supervisor.keep(program("mute", "import time; time.sleep(600)"))
        wait_until(lambda: supervisor.pid_of("mute") > 0)
        pid = supervisor.pid_of("mute")
        stopping.set()
        assert not supervisor.wait_ready()
    assert is_gone(pid)


def test_a_program_that_does_not_want_to_end_is_ended(told, program):
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEPER}"
    with Supervisor(told, threading.Event()) as supervisor:
        supervisor.keep(program("deaf", code))
        assert supervisor.wait_ready()
        pid = supervisor.pid_of("deaf")
    assert is_gone(pid)


def test_a_killed_server_comes_back_on_its_port_with_its_data(told, tmp_path):
    import redis

    from tailrace.stand import Redis

    with Supervisor(told, threading.Event()) as supervisor:
        supervisor.keep(LocalServer("redis", lambda: Redis.start(folder=tmp_path), tmp_path))
        assert supervisor.wait_ready()
        address = told.reports[-1].address
        with redis.Redis.from_url(f"redis://{address}") as client:
            client.set("kept", "yes")
            os.kill(supervisor.pid_of("redis"), signal.SIGKILL)
            wait_until(lambda: told.states("redis").count(State.UP) == 2)
            assert client.get("kept") == b"yes"
        assert told.reports[-1].address == address
