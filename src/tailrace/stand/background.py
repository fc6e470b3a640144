"""A stand that runs in the background: the process that owns the servers, and the file that describes it.

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
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailrace.errors import StandError, TailraceError


@dataclass(frozen=True, slots=True)
class RunningServer:
    """One server as `tailrace stand status` shows it."""

    name: str
    address: str
    setting: str
    pids: tuple[int, ...]
    log: str


@dataclass(frozen=True, slots=True)
class StandPlan:
    """What to start."""

    servers: tuple[str, ...] = ("mongodb",)
    mongodb_version: str = "6.0.5"
    mongodb_nodes: int = 1

    def check(self) -> None:
        """Refuse a name that nobody knows, before anything is started."""
        for name in self.servers:
            if name not in STARTERS:
                raise StandError(f"no server is called {name}", hint=f"Choose from: {', '.join(STARTERS)}.")


Started = tuple[AbstractContextManager[Any], RunningServer]


def start_mongodb(plan: StandPlan, folder: Path) -> Started:
    """A replica set."""
    from tailrace.stand.replica_set import ReplicaSet

    server = ReplicaSet.start(plan.mongodb_version, nodes=plan.mongodb_nodes, folder=folder)
    pids = tuple(node.pid for node in server.nodes)
    return server, RunningServer("mongodb", server.uri, "mongodb.uri", pids, str(server.nodes[0].log))


def start_kafka(plan: StandPlan, folder: Path) -> Started:
    """A broker."""
    from tailrace.stand.kafka import Kafka

    server = Kafka.start(folder=folder)
    address = f"kafka://{server.bootstrap_servers}"
    return server, RunningServer("kafka", address, "capture.sink", (server.pid,), str(server.log))


def start_redis(plan: StandPlan, folder: Path) -> Started:
    """A Redis server."""
    from tailrace.stand.redis import Redis

    server = Redis.start(folder=folder)
    return server, RunningServer("redis", server.url, "features.redis_url", (server.pid,), str(server.log))


def start_postgres(plan: StandPlan, folder: Path) -> Started:
    """A PostgreSQL server."""
    from tailrace.stand.postgres import Postgres

    server = Postgres.start(folder=folder)
    return server, RunningServer("postgres", server.dsn, "capture.position_store", (server.pid,), str(server.log))


STARTERS: dict[str, Callable[[StandPlan, Path], Started]] = {
    "mongodb": start_mongodb,
    "kafka": start_kafka,
    "redis": start_redis,
    "postgres": start_postgres,
}


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
    """Start the servers, write the state file, and keep them until SIGTERM."""
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
