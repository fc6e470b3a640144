"""Wine, which runs a Windows program where no registry has a Linux one.

Every server gets a prefix of its own, and with it a `wineserver` of its own: that one ends when the server has ended,
however that was, and ending it concerns nobody else. A prefix is small, because what all have in common (the `C:`
drive) is made once per machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from tailrace.errors import StandError
from tailrace.owned import run_guarded
from tailrace.stand.cache import made_once, report_progress

MISSING = "Wine is not installed"
HINT = "Install it: apt-get install --no-install-recommends wine wine64."
_SECONDS = 300
_QUIET = {"WINEDEBUG": "-all"}


def loader() -> Path | None:
    """Find the program that runs 64-bit Windows programs; None where Wine is not installed."""
    found = (shutil.which(name) for name in ("wine64", "/usr/lib/wine/wine64", "wine"))
    return next((Path(path) for path in found if path), None)


@dataclass(frozen=True, slots=True)
class WinePrefix:
    """Where one server runs; its drive `D:` is a folder with all its files."""

    path: Path
    drive: Path

    @classmethod
    def make(cls, path: Path, drive: Path) -> WinePrefix:
        """Make a prefix at a path."""
        prefix, template = cls(path, drive), _template()
        drives = prefix.path / "dosdevices"
        drives.mkdir(parents=True)
        for file in template.glob("*.reg"):
            shutil.copy(file, prefix.path)
        (prefix.path / "drive_c").symlink_to(template / "drive_c")
        (drives / "c:").symlink_to("../drive_c")
        (drives / "d:").symlink_to(drive)
        return prefix

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to run in it; without `wineboot`, which starts services that no server needs.

        A second program in the prefix would wait for those, so that `end` has to come before it.
        """
        return {**_QUIET, "WINEPREFIX": str(self.path), "WINEDLLOVERRIDES": "wineboot.exe=d"}

    def windows_path(self, path: Path) -> str:
        """Give a path inside `drive` as programs in the prefix know it."""
        return str(PureWindowsPath("D:/", *path.relative_to(self.drive).parts))

    def end(self) -> None:
        """End what still runs in it."""
        server = shutil.which("wineserver") or shutil.which("/usr/lib/wine/wineserver")
        if server is not None:
            _run([server, "-k"], {**os.environ, **self.environment})

    def remove(self) -> None:
        """End what still runs in it, and remove it."""
        self.end()
        # Its drives are links, and those are removed, not followed.
        shutil.rmtree(self.path, ignore_errors=True)


def _template() -> Path:
    program = loader()
    if program is None:
        raise StandError(MISSING, hint=HINT)
    version = run_guarded([str(program), "--version"], capture_output=True, text=True, timeout=60).stdout
    name = re.sub(r"[^\w.]+", "-", version.strip()).strip("-")

    def fill(folder: Path) -> None:
        report_progress("preparing Wine")
        # Neither its .NET nor its browser, which it would offer to fetch.
        environment = {**os.environ, **_QUIET, "WINEPREFIX": str(folder), "WINEDLLOVERRIDES": "mscoree,mshtml=d"}
        _run([str(program), "wineboot", "-i"], environment)
        if not (folder / "drive_c" / "windows" / "system32" / "kernel32.dll").exists():
            raise StandError(f"{program} could not prepare a prefix")

    return made_once(f"prefix-{name}", fill)


def _run(command: list[str], environment: dict[str, str]) -> None:
    run_guarded(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_SECONDS,
    )
