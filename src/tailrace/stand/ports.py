"""Loopback ports that nobody else takes between choosing them and listening on them.

Asking the kernel for a free port and giving it back leaves a moment in which another process may get the
same one. Ports here lie below the range of outgoing connections and are held by a file lock, so that
several test processes on one machine never choose the same.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

from tailrace.errors import StandError

FIRST_PORT, LAST_PORT = 20_000, 32_000


class ReservedPort:
    """A port number that is ours until `release`."""

    def __init__(self, number: int, lock: IO[bytes]) -> None:
        self.number = number
        self._lock = lock

    def release(self) -> None:
        """Give the port back; a second call does nothing."""
        self._lock.close()


def reserve_port(preferred: int | None = None) -> ReservedPort:
    """Reserve a free loopback port: the preferred one, if there is one and it is free."""
    folder = Path(tempfile.gettempdir()) / f"tailrace-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    candidates = list(range(FIRST_PORT, LAST_PORT))
    random.shuffle(candidates)
    if preferred is not None:
        candidates.insert(0, preferred)
    for number in candidates:
        lock = (folder / str(number)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        if _is_free(number):
            return ReservedPort(number, lock)
        lock.close()
    raise StandError(f"no free port between {FIRST_PORT} and {LAST_PORT}")


def _is_free(number: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return False
    return True
