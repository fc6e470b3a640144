"""A dashboard as a process of its own, with what it looks at, for tests that ask it as a browser does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tailrace.owned import GuardedProcess
from tailrace.stand.ports import reserve_port
from waiting import SECONDS, wait_until

TOKEN = "a-token-for-the-page"
CONTROL_TOKEN = "a-token-for-producers"
T = TypeVar("T")


def free_port() -> int:
    """A port that nobody has now."""
    port = reserve_port()
    port.release()
    return port.number


def write_settings(folder: Path, **sections: dict[str, Any]) -> Path:
    """A settings file with these sections."""

    def shown(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list | tuple):
            return f"[{', '.join(shown(each) for each in value)}]"
        return str(value) if isinstance(value, int | float) else f"'{value}'"

    lines = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {shown(value)}" for key, value in values.items())]
    file = folder / "tailrace.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


@contextmanager
def running(verb: str, settings: Path, *flags: str) -> Iterator[GuardedProcess[str]]:
    """A verb as a process; it is ended with the block."""
    command = [sys.executable, "-m", "tailrace.cli.app", "--config", str(settings), verb, *flags]
    log = (settings.parent / f"{verb}.log").open("w")
    process = GuardedProcess(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=settings.parent)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=SECONDS)
        log.close()


class Site:
    """A running dashboard."""

    def __init__(self, url: str, process: GuardedProcess[str]) -> None:
        self.url = url
        self.process = process
        self.http = httpx.Client(base_url=url, timeout=20, verify=False)

    def get(self, path: str, **parameters: Any) -> Any:
        """The JSON of an answer, which must be a good one."""
        answer = self.http.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def act(self, action: str, *, token: str | None = TOKEN, **body: Any) -> httpx.Response:
        """Ask for an action."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.http.post(f"/api/actions/{action}", json=body, headers=headers)

    def box(self, name: str) -> dict[str, Any]:
        """A box of the flow."""
        boxes: dict[str, dict[str, Any]] = {box["id"]: box for box in self.get("/api/flow")["boxes"]}
        return boxes[name]

    def colours(self) -> dict[str, str]:
        """The colour of every box."""
        return {box["id"]: box["condition"]["colour"] for box in self.get("/api/flow")["boxes"]}


@contextmanager
def dashboard(settings: Path) -> Iterator[Site]:
    """The dashboard of a settings file, at a port of its own, once it has looked at everything."""
    with running("dashboard", settings, "--port", "0") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("dashboard at "), (settings.parent / "dashboard.log").read_text()
        site = Site(line.split()[-1].rstrip("/"), process)
        with site.http:
            wait_until(lambda: site.http.get("/readyz").status_code == 200, "a first look at everything")
            yield site
