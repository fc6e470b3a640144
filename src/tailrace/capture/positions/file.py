"""Positions in files: one small file per name, replaced as a whole."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from tailrace.errors import SettingsError, StoreUnavailable

_CELL = ".position.json"
_TRAIL = ".history.jsonl"
_LOCK = ".lock"


class FileCells:
    """A folder of cells, for one machine.

    A cell is written to a new file, synced, renamed over the old one, and the folder is synced: whatever dies when, the
    name leads to the old cell or the new one. The trail is written ahead of the cell, so a crash between the two
    leaves a line too many rather than one too few.
    """

    def __init__(self, folder: Path) -> None:
        nearest = next((path for path in (folder, *folder.parents) if path.exists()), folder)
        if nearest.exists() and not nearest.is_dir():
            message = f"capture.position_store: {folder} cannot be a folder: {nearest} is a file"
            raise SettingsError(message, hint="Name a folder, such as file:.tailrace/positions.")
        self._folder = folder  # made by the first write: looking at a store leaves no traces

    def read(self, name: str) -> bytes | None:
        """Give the cell, or None when there is none."""
        with _disk_errors(self._folder):
            try:
                return self._path(name, _CELL).read_bytes()
            except FileNotFoundError:
                return None

    def swap(self, name: str, expected: bytes | None, cell: bytes, change: bytes | None) -> bool:
        """Replace the cell if it is `expected`; the lock makes that one step among processes."""
        with _disk_errors(self._folder), self._locked(name):
            if self.read(name) != expected:
                return False
            if change is None:
                self._replace(name, cell)
            else:
                with self._appended(name, change):
                    self._replace(name, cell)
        return True

    def seconds_since_written(self, name: str, cell: bytes) -> float | None:
        """None: the times of files may come from the clock of any machine that shares the folder."""
        return None

    def changes(self, name: str, limit: int) -> list[bytes]:
        """Give the last lines of the trail, the newest first; a line that a crash cut off is not one."""
        with _disk_errors(self._folder):
            try:
                lines = self._path(name, _TRAIL).read_bytes().split(b"\n")
            except FileNotFoundError:
                return []
        return lines[:-1][::-1][:limit]

    def names(self) -> list[str]:
        """Give every name that has a cell."""
        with _disk_errors(self._folder):
            return [unquote(file.name.removesuffix(_CELL)) for file in self._folder.glob(f"*{_CELL}")]

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _path(self, name: str, suffix: str) -> Path:
        return self._folder / f"{quote(name, safe='')}{suffix}"

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Keep other processes out; the kernel gives the lock back when this one dies."""
        self._make_folder()
        descriptor = os.open(self._path(name, _LOCK), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _make_folder(self) -> None:
        """Make the folder; where this user may not, no later try will do better."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            message = f"capture.position_store: {self._folder} cannot be made: {error.strerror}"
            raise SettingsError(message, hint="Name a folder that this user may write to, by its whole path.") from None

    def _replace(self, name: str, cell: bytes) -> None:
        target = self._path(name, _CELL)
        new = target.with_name(f"{target.name}.new")
        try:
            _write_synced(new, cell, os.O_TRUNC)
            new.replace(target)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        self._sync_folder()

    @contextmanager
    def _appended(self, name: str, change: bytes) -> Iterator[None]:
        """Add a line to the trail, and take it back when the change does not happen."""
        trail = self._path(name, _TRAIL)
        whole_lines = trail.read_bytes().rfind(b"\n") + 1 if trail.exists() else 0
        try:
            _write_synced(trail, change + b"\n", 0, start=whole_lines)
            yield
        except OSError:
            os.truncate(trail, whole_lines)
            raise

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_synced(path: Path, data: bytes, flags: int, start: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        os.ftruncate(descriptor, start)
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, start)
            view, start = view[written:], start + written
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"cannot keep positions in {folder}: {error.strerror}", cause=error.errno) from error
