"""`tailrace up --config`: servers that the settings name are used, and however it is told to stop, nothing stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace.owned import GuardedProcess
from up_pipeline import SECONDS, alive, descendants, wait_gone

pytestmark = pytest.mark.timeout(SECONDS)


@contextmanager
def own_servers(folder: Path, mongodb: Any, kafka: Any, redis_server: Any) -> Iterator[GuardedProcess[bytes]]:
    """Run it on servers that are there already; what it prints is in `printed.log`."""
    (folder / "tailrace.toml").write_text(
        f'[mongodb]\nuri = "{mongodb.uri}"\n'
        f'[capture]\nname = "{folder.name}"\nnamespaces = ["own_servers"]\nsink = "kafka://{kafka.address}"\n'
        f'[features]\nredis_url = "{redis_server.url}"\n'
        "[dashboard]\nport = 0\n"
    )
    command = [sys.executable, "-m", "tailrace.cli.app", "up", "--config", "tailrace.toml"]
    with (folder / "printed.log").open("wb") as printed:
        process = GuardedProcess(
            command,
            cwd=folder,
            stdout=printed,
            stderr=subprocess.STDOUT,
            # Under `nohup` the signal of a closed terminal is ignored; here it shall not be, whatever runs the tests.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(SECONDS)


def wait_for(process: GuardedProcess[bytes], folder: Path, words: str) -> str:
    """Give what was printed, when these words are among it."""
    deadline = time.monotonic() + SECONDS
    while words not in (printed := (folder / "printed.log").read_text()):
        assert process.poll() is None, printed
        assert time.monotonic() < deadline, printed
        time.sleep(0.1)
    return printed


def test_named_servers_are_used_and_sigterm_stops_the_rest(mongodb, kafka, redis_server, tmp_path: Path) -> None:
    with own_servers(tmp_path, mongodb, kafka, redis_server) as process:
        printed = wait_for(process, tmp_path, "Ctrl-C stops everything")
        started = {line.split()[2] for line in printed.splitlines() if line.endswith("starting")}
        assert started == {"producer", "warehouse", "dashboard"}
        below = descendants(process.program_pid)
        assert len(alive(below)) > len(started)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        wait_gone(below)
    printed = (tmp_path / "printed.log").read_text()
    assert {line.split()[2] for line in printed.splitlines() if line.endswith("stopped")} == started


def test_a_closed_terminal_stops_a_run_that_is_still_starting(mongodb, kafka, redis_server, tmp_path: Path) -> None:
    with own_servers(tmp_path, mongodb, kafka, redis_server) as process:
        wait_for(process, tmp_path, "dashboard        up")
        below = descendants(process.program_pid)
        assert alive(below)
        process.send_signal(signal.SIGHUP)
        assert process.wait(SECONDS) == 0
        wait_gone(below)
    assert not (tmp_path / ".tailrace" / "up" / "tmp").exists()
