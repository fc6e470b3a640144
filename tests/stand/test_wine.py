"""Servers under Wine: what any server of the stand can do, and none outlives its owner or takes a neighbour along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pymongo.errors import PyMongoError

from processes import is_running
from tailrace.errors import StandError
from tailrace.stand import ReplicaSet, wine
from tailrace.stand.mongod_binary import WINDOWS_VERSIONS, MongodBinary

(VERSION,) = WINDOWS_VERSIONS
StartMongodb = Callable[..., ReplicaSet]


def running_in(prefix: Path) -> list[int]:
    """The processes of a prefix, its `wineserver` among them."""
    wanted = f"WINEPREFIX={prefix}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in entry.read_bytes().split(b"\0") and is_running(int(entry.parent.name)):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def wait_until_empty(prefix: Path) -> None:
    deadline = time.monotonic() + 200
    while running_in(prefix):
        assert time.monotonic() < deadline, f"{running_in(prefix)} still run"
        time.sleep(0.1)


OWNER = """
import sys
from pathlib import Path
from tailrace.stand import ReplicaSet
folder = Path(sys.argv[1])
replica_set = ReplicaSet.start(sys.argv[2], folder=folder)
print("ready", flush=True)
sys.stdin.read()
"""


def test_all_of_it_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    if (reason := MongodBinary.why_not(VERSION)) is not None:
        pytest.skip(reason)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), VERSION], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    prefix = tmp_path / "mongodb-rs0" / "node0" / "wine"
    programs = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] for pid in running_in(prefix)]
    assert any(b"mongod.exe" in program for program in programs)
    assert any(b"wineserver" in program for program in programs)
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    wait_until_empty(prefix)


def test_closing_one_leaves_its_neighbour_and_the_shared_drive_alone(
    start_mongodb: StartMongodb, tmp_path: Path
) -> None:
    first, second = start_mongodb(VERSION, oplog_mb=1), start_mongodb(VERSION)
    prefix = tmp_path / "replica-set-1" / "mongodb-rs0" / "node0" / "wine"
    drive = (prefix / "drive_c").resolve()
    second.close()
    assert not running_in(prefix)
    assert not prefix.exists()
    assert (drive / "windows" / "system32" / "kernel32.dll").exists()
    node = first.primary
    with node.client(retryReads=False) as client:
        client.shop.orders.insert_one({"_id": 1})
        failing = {"failCommands": ["find"], "errorCode": 2}
        with node.fail_point("failCommand", "alwaysOn", failing), pytest.raises(PyMongoError, match="failCommand"):
            client.shop.orders.find_one()
    before = first.oplog_bounds()[1]
    assert first.roll_over_oplog() > before
    node.kill()
    node.restart()
    assert first.primary is node


@pytest.mark.long
def test_three_nodes_elect_another_primary(start_mongodb: StartMongodb) -> None:
    replica_set = start_mongodb(VERSION, nodes=3)
    first = replica_set.primary
    replica_set.step_down(seconds=30)
    assert replica_set.primary is not first


def test_without_wine_such_a_server_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wine, "loader", lambda: None)
    assert MongodBinary.why_not(VERSION) == wine.MISSING
    assert MongodBinary.why_not("6.0.5") is None
    with pytest.raises(StandError, match="Wine is not installed") as refused:
        MongodBinary.of_version(VERSION)
    assert "apt-get" in (refused.value.hint or "")
