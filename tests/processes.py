"""Looking at other processes."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie, which only waits for its parent to look at it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before, or while it was looked at
        return False
