"""A gateway as users run it: `tailrace serve`, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tailrace.owned import GuardedProcess
from tailrace.stand.ports import reserve_port
from waiting import SECONDS


class GatewayProcess:
    """Serves until it is closed; what it logs stands in a file."""

    def __init__(self, uri: str, log: Path, **settings: object) -> None:
        self.log = log
        self._metrics = reserve_port()
        given = {f"TAILRACE_GATEWAY__{name.upper()}": str(value).lower() for name, value in settings.items()}
        command = [sys.executable, "-m", "tailrace.cli.app", "serve", "--uri", uri, "--port", "0"]
        with log.open("wb") as errors:
            self._process: GuardedProcess[Any] = GuardedProcess(
                [*command, "--metrics-port", str(self._metrics.number)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **given},
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "serving" in line, log.read_text()
        self.port = int(line.rpartition(":")[2].strip().strip("/"))

    @property
    def pid(self) -> int:
        return self._process.program_pid

    @property
    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def metrics(self, prefix: str = "tailrace_gateway_") -> dict[str, float]:
        """The gateway's own numbers, at most a second old: `commands_total`, `connections` and so on."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics.number}/metrics", timeout=120) as page:
            lines = page.read().decode().splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith(prefix))
        return {name.partition("{")[0].removeprefix(prefix): float(value) for name, _, value in found}

    def close(self) -> None:
        """Stop as SIGTERM does."""
        self._process.terminate()
        try:
            self._process.wait(SECONDS)
        finally:
            self._process.kill()
            self._metrics.release()
