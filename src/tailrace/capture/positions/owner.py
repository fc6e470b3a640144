"""Names of writers: unique per process, and telling on the same machine whether the process still lives."""

from __future__ import annotations

import os
import socket
import uuid
from functools import cache
from pathlib import Path


def this_process() -> str:
    """Give a name that no other process has: host, its boot and process namespace, process id and start time."""
    return f"{_machine()}/{os.getpid()}/{_start_time(os.getpid())}"


def has_ended(owner: str) -> bool:
    """Whether the owner was a process of this machine and is gone, so that nobody need wait for its lease.

    False when that cannot be known: the process ran on another machine or in another container.
    """
    machine, _, rest = owner.rpartition("/")
    machine, _, pid = machine.rpartition("/")
    if machine != _machine() or not pid.isdigit():
        return False
    return _start_time(int(pid)) != rest


@cache
def _machine() -> str:
    """Machines may share their name, and the number of their first process namespace, but no two boots their id."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return f"{socket.gethostname()}/{uuid.getnode():012x}/unknown"
    return f"{socket.gethostname()}/{boot.partition('-')[0]}/{namespace}"


def _start_time(pid: int) -> str:
    """Give the start time in clock ticks since boot; empty when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    after_name = stat.rpartition(")")[2].split()
    return "" if after_name[0] == "Z" else after_name[19]
