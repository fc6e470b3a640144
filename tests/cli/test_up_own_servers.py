"""`tailrace up --config`: servers that the settings name are used, and nothing is started in their place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)
def test_servers_that_are_named_are_not_started(mongodb, kafka, redis_server, tmp_path: Path) -> None:
    (tmp_path / "tailrace.toml").write_text(
        f'[mongodb]\nuri = "{mongodb.uri}"\n'
        f'[capture]\nname = "own"\nnamespaces = ["own_servers"]\nsink = "kafka://{kafka.address}"\n'
        f'[features]\nredis_url = "{redis_server.url}"\n'
        "[dashboard]\nport = 0\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "tailrace.cli.app", "--config", "tailrace.toml", "up", "--seconds", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    shown = run.stdout + run.stderr
    assert run.returncode == 0, shown
    started = {line.split()[2] for line in shown.splitlines() if line.endswith("starting")}
    assert started == {"producer", "warehouse", "dashboard"}
    assert "everything is up" in shown
