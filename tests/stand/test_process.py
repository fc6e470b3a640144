"""Server processes end with their owner, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tailrace.errors import ServerDidNotStart
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.stand.process import ServerProcess
from waiting import SECONDS

OWNER = """
import sys, time
from pathlib import Path
from tailrace.stand.process import ServerProcess
server = ServerProcess("sleeper", ["sh", "-c", "sleep 600 & sleep 600"], log=Path(sys.argv[1]))
server.start(lambda: True)
print(server.pid, flush=True)
time.sleep(600)
"""


def members_of_session(pid: int) -> list[int]:
    """The processes that the server started, itself included."""
    listed = run_guarded(
        ["ps", "-e", "-o", "pid=,sid="], capture_output=True, text=True, check=True, timeout=SECONDS
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if int(line.split()[1]) == pid]


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_its_owner(tmp_path, how):
    owner = GuardedProcess([sys.executable, "-c", OWNER, str(tmp_path / "log")], stdout=subprocess.PIPE)
    server = int(owner.stdout.readline())
    wait_until(lambda: len(members_of_session(server)) >= 3)
    owner.send_signal(how)
    owner.wait(SECONDS)
    owner.stdout.close()
    wait_until(lambda: members_of_session(server) == [])


def test_a_killed_guardian_takes_the_server_with_it(tmp_path):
    server = ServerProcess("sleeper", ["sleep", "600"], log=tmp_path / "log")
    server.start(lambda: True)
    guardian = int(
        run_guarded(["ps", "-o", "ppid=", "-p", str(server.pid)], capture_output=True, timeout=SECONDS).stdout
    )
    os.kill(guardian, signal.SIGKILL)
    wait_until(lambda: members_of_session(server.pid) == [])
    wait_until(lambda: not server.alive)


def test_a_server_that_ends_early_is_reported_with_its_log(tmp_path):
    server = ServerProcess("liar", ["sh", "-c", "echo out of luck; exit 3"], log=tmp_path / "log")
    with pytest.raises(ServerDidNotStart, match="out of luck"):
        server.start(lambda: False)


def test_a_server_that_never_answers_is_ended(tmp_path):
    server = ServerProcess("mute", ["sleep", "600"], log=tmp_path / "log")
    with pytest.raises(ServerDidNotStart, match="did not answer within 1 s"):
        server.start(lambda: False, timeout=1)
    wait_until(lambda: members_of_session(server.pid) == [])


def test_a_program_that_does_not_exist_is_reported(tmp_path):
    server = ServerProcess("ghost", ["/no/such/program"], log=tmp_path / "log")
    with pytest.raises(ServerDidNotStart, match="cannot run /no/such/program"):
        server.start(lambda: False)


def test_stop_asks_first_and_kill_does_not(tmp_path):
    trap = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    server = ServerProcess("polite", ["sh", "-c", trap], log=tmp_path / "log")
    server.start(lambda: "ready" in server.log_tail())
    server.stop()
    assert "asked" in server.log_tail()
    assert not server.alive
    server.stop()
    server.kill()
