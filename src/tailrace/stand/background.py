"""A stand that runs in the background: the process that owns the servers, and the file that tells about it.

`bring_up` starts an owner process and returns when its servers answer; `take_down` ends it. The owner writes
what runs into `state.json` in the stand's folder. Since every server ends with its owner, killing the owner
leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tailrace.errors import StandError, TailraceError
from tailrace.stand.servers import STARTERS, RunningServer, StandPlan

_SECONDS_TO_START = 600
_SECONDS_TO_STOP = 60


@dataclass(frozen=True, slots=True)
class StandState:
    """The owner process and its servers; written when all of them answer."""

    owner: int
    servers: tuple[RunningServer, ...]

    @property
    def running(self) -> bool:
        """Whether the owner process still lives; one that ended and was not waited for does not."""
        try:
            stat = Path(f"/proc/{self.owner}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"


def stand_folder() -> Path:
    """The folder of the background stand, under the user's state home."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "tailrace" / "stand"


def read_state() -> StandState | None:
    """What the owner last wrote; None when no stand is up."""
    try:
        written = json.loads((stand_folder() / "state.json").read_text())
    except FileNotFoundError:
        return None
    servers = tuple(RunningServer(**{**server, "pids": tuple(server["pids"])}) for server in written.pop("servers"))
    state = StandState(servers=servers, **written)
    return state if state.running else None


def bring_up(plan: StandPlan) -> StandState:
    """Start the servers in the background and return when all of them answer."""
    plan.check()
    if read_state() is not None:
        raise StandError("a stand is up already", hint="Run `tailrace stand down`, then name all servers at once.")
    folder = stand_folder()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "tailrace.stand.background", json.dumps(asdict(plan))]
    with (folder / "owner.log").open("wb") as log:
        owner = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < deadline:
        state = read_state()
        if state is not None:
            return state
        if owner.poll() is not None:
            log_text = (folder / "owner.log").read_text().strip().splitlines()
            raise StandError(log_text[-1] if log_text else "the stand's owner process ended")
        time.sleep(0.1)
    owner.terminate()
    raise StandError(f"the servers did not answer within {_SECONDS_TO_START} s")


def take_down() -> bool:
    """End the stand; False when none was up."""
    state = read_state()
    if state is None:
        return False
    os.kill(state.owner, signal.SIGTERM)
    deadline = time.monotonic() + _SECONDS_TO_STOP
    while state.running and time.monotonic() < deadline:
        time.sleep(0.05)
    if state.running:
        os.kill(state.owner, signal.SIGKILL)
    return True


def _own(plan: StandPlan) -> None:
    """Start the servers, say so, and keep them until SIGTERM."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with ExitStack() as running:
        servers: list[RunningServer] = []
        for name in plan.servers:
            server, shown = STARTERS[name](plan, stand_folder())
            running.enter_context(server)
            servers.append(shown)
        _write_state(StandState(os.getpid(), tuple(servers)))
        stopping.wait()
    shutil.rmtree(stand_folder(), ignore_errors=True)


def _write_state(state: StandState) -> None:
    written = stand_folder() / "state.json.new"
    written.write_text(json.dumps(asdict(state), indent=2))
    written.rename(stand_folder() / "state.json")


if __name__ == "__main__":
    try:
        _own(StandPlan(**{**(given := json.loads(sys.argv[1])), "servers": tuple(given["servers"])}))
    except TailraceError as failure:
        sys.exit(failure.message)
