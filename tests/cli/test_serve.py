"""`tailrace serve` as a process of its own: it serves, reports, and ends when told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from pymongo import MongoClient

from tailrace.owned import GuardedProcess
from tailrace.stand import ReplicaSet
from tailrace.stand.ports import reserve_port
from waiting import SECONDS


@pytest.mark.parametrize("flags", [[], ["--watch-only", "--address", "localhost"]], ids=["all", "watch-only"])
def test_it_serves_until_it_is_told_to_stop(mongodb: ReplicaSet, tmp_path: Path, flags: list[str]) -> None:
    port = reserve_port()
    command = [sys.executable, "-m", "tailrace.cli.app", "serve", "--uri", mongodb.uri, "--port", "0"]
    port.release()
    (tmp_path / "tailrace.toml").write_text(f"[gateway]\nmetrics_port = {port.number}\n")
    command += flags
    the_producers = {"TAILRACE_MONITOR__METRICS_PORT": str(mongodb.primary.port)}  # somebody has that port already
    process = GuardedProcess(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, **the_producers}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        uri = line.split(" at ")[1].strip()
        with MongoClient(uri, serverSelectionTimeoutMS=10_000) as client, client.served.c.watch() as stream:
            with mongodb.client() as direct:
                direct.served.c.insert_one({})
            assert next(stream)["operationType"] == "insert"
            with urllib.request.urlopen(f"http://127.0.0.1:{port.number}/metrics", timeout=120) as response:
                assert 'tailrace_hub_upstream_cursors{shard="rs0"} 1.0' in response.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=SECONDS) == 0
    finally:
        process.kill()
        process.wait(timeout=SECONDS)
