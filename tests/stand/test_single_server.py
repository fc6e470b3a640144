"""What holds for each server of one process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.owned import GuardedProcess
from tailrace.stand import Kafka, Postgres, Redis
from tailrace.stand.server import SingleServer

SECONDS_TO_END = 30
OWNER = """
import sys, time
from tailrace import stand
server = getattr(stand, sys.argv[1]).start()
print(server.pid, server.port, flush=True)
time.sleep(600)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own: PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.mark.parametrize("kind", [Kafka, Postgres, Redis])
def test_no_server_outlives_its_owner(kind: type[SingleServer], open_folder: Path) -> None:
    """Even when the owner is killed and can do nothing about it."""
    owner = GuardedProcess(
        [sys.executable, "-c", OWNER, kind.__name__],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(open_folder)},
    )
    assert owner.stdout
    pid, port = (int(text) for text in owner.stdout.readline().split())
    assert is_listening(port)
    owner.send_signal(signal.SIGKILL)
    owner.wait(SECONDS_TO_END)
    owner.stdout.close()
    deadline = time.monotonic() + SECONDS_TO_END
    while Path(f"/proc/{pid}").exists() or is_listening(port):
        assert time.monotonic() < deadline, f"{kind.__name__} lives on without its owner"
        time.sleep(0.05)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_closed_server_leaves_nothing_but_its_log(tmp_path: Path) -> None:
    with Redis.start(folder=tmp_path) as server:
        assert (tmp_path / "redis" / "appendonly.aof").exists()
        log = server.log
    assert not server.alive
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [log]
