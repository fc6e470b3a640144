"""A disk of a few megabytes that a fault can fill without filling the machine's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.owned import run_guarded

_SECONDS = 30.0


def mount_small_disk(folder: Path, megabytes: int) -> bool:
    """Let a folder be such a disk; False where that is not allowed (it needs root)."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    return os.geteuid() == 0 and run_guarded(command, capture_output=True, timeout=_SECONDS).returncode == 0


def unmount(folder: Path) -> None:
    """Take it away; who has files open there keeps them until it ends."""
    run_guarded(["umount", "--lazy", str(folder)], check=True, timeout=_SECONDS)


@contextmanager
def filled(folder: Path) -> Iterator[int]:
    """Leave no room on the disk while the block runs; gives how much was written."""
    assert folder.is_mount(), f"{folder} is no disk of its own"
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4_096)
        except OSError:
            pass
    try:
        yield filler.stat().st_size
    finally:
        filler.unlink()
