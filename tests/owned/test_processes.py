"""A process ends with its owner, however that ends, and otherwise behaves as one of `subprocess`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from processes import is_running
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.owned.guardian import kill_group

OWNER = """
import subprocess, sys
from tailrace.owned import GuardedProcess
process = GuardedProcess(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
print(process.program_pid, process.stdout.readline(), flush=True)
{end}
"""
ENDS = {
    "killed": "import os; os.kill(os.getpid(), 9)",
    "crashed": "import os; os._exit(3)",
    "failed": "raise RuntimeError",
    "ended": "",
}
SECONDS = 60.0


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + SECONDS
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} outlives its owner"
        time.sleep(0.02)


@pytest.mark.parametrize("end", ENDS)
def test_it_and_what_it_started_end_with_the_owner(end: str) -> None:
    owner = run_guarded([sys.executable, "-c", OWNER.format(end=ENDS[end])], capture_output=True, timeout=SECONDS)
    program, grandchild = map(int, owner.stdout.split())
    wait_until_gone(program)
    wait_until_gone(grandchild)


def test_a_process_that_nobody_holds_any_more_ends() -> None:
    process = GuardedProcess[bytes](["sleep", "600"])
    pid = process.program_pid
    with pytest.warns(ResourceWarning, match="still running"):
        del process
    wait_until_gone(pid)


def test_a_program_ends_with_its_guardian() -> None:
    """Nobody else is left who would end it, as when the system kills for want of memory."""
    with GuardedProcess[bytes](["sleep", "600"]) as process:
        os.kill(process.pid, signal.SIGKILL)
        wait_until_gone(process.program_pid)


def test_a_program_that_leads_no_group_yet_is_killed_too() -> None:
    """An owner may go between the fork of its program and the program's `setsid`."""
    with GuardedProcess[str](["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert os.getpgid(pid) != pid
        kill_group(pid)
        wait_until_gone(pid)
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGSEGV])
def test_signals_go_to_the_program_and_come_back_as_its_end(number: signal.Signals) -> None:
    with GuardedProcess[bytes](["sleep", "600"]) as process:
        process.send_signal(number)
        assert process.wait(SECONDS) == -number
    process.send_signal(number)


def test_streams_belong_to_the_program_alone() -> None:
    """Its end closes them at once, and an input that is closed is one that ends."""
    with GuardedProcess[str](["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate("what goes in", timeout=SECONDS)
    assert output == "what goes in"
    assert process.returncode == 0


def test_it_inherits_no_pipe_of_the_guard() -> None:
    listed = run_guarded(["ls", "/proc/self/fd"], capture_output=True, text=True, timeout=SECONDS).stdout.split()
    assert len(listed) == 4, "its three streams, and the folder that it lists"


def test_a_run_is_as_one_of_subprocess(tmp_path: Path) -> None:
    done = run_guarded(
        ["sh", "-c", "echo out; echo err >&2; pwd; exit 3"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, f"out\n{tmp_path}\n", "err\n")
    with pytest.raises(subprocess.CalledProcessError, match="'sh', '-c', 'exit 3'"):
        run_guarded(["sh", "-c", "exit 3"], timeout=SECONDS, check=True)
    assert run_guarded(["/no/such/program"], capture_output=True, timeout=SECONDS).returncode == 127
    assert run_guarded(["cat"], input=b"x", capture_output=True, timeout=SECONDS).stdout == b"x"


def test_a_run_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired, match="sleep"):
        run_guarded(["sleep", "600"], timeout=0.1)


def test_no_descriptor_is_lost() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run_guarded(["true"], timeout=SECONDS, capture_output=True)
    assert len(os.listdir("/proc/self/fd")) == before
