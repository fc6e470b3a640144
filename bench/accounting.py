"""What a contestant and the servers used: CPU and memory from the kernel, bytes over the wire from mongod itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo import MongoClient

_SCHEDULER_CLOCK = 2


def cpu_seconds(pid: int) -> float:
    """CPU that a process has used, to the nanosecond: its threads that ended are in it, and so are its children.

    The clock of another process has a number made of its id, as `clock_getcpuclockid` does; /proc/PID/stat would
    give hundredths of a second, which has to do for the children.
    """
    try:
        return time.clock_gettime((~pid << 3) | _SCHEDULER_CLOCK) + _of_ended_children(pid)
    except OSError:
        return 0.0  # it has ended


def _of_ended_children(pid: int) -> float:
    """What the children of a process had used that it has taken leave of: fields 16 and 17 of its line."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def tree_of(pid: int) -> list[int]:
    """A process and all below it: Spark is a Python process, its JVM and their workers."""
    found = [pid]
    for each in found:
        for listing in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found.extend(map(int, listing.read_text().split()))
            except OSError:
                continue
    return found


def peak_mb(pids: Iterable[int]) -> float:
    """The greatest resident sizes that processes have had, added up."""
    return sum(_status_kb(pid, "VmHWM") for pid in pids) / 1024


def forget_peak(pids: Iterable[int]) -> None:
    """Let the greatest resident size of processes begin anew, where the kernel allows it."""
    for pid in pids:
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:
            continue


def _status_kb(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at everything."""

    at: float
    cpu: Mapping[str, float]
    wire_bytes: int


class Meter:
    """Looks at a contestant and the servers, and says what happened between two looks."""

    def __init__(self, servers: Mapping[str, Iterable[int]], client: MongoClient[Any] | None = None) -> None:
        self._servers = {name: list(pids) for name, pids in servers.items()}
        self._client = client

    def look(self, tool: int) -> Sample:
        """Note the time and what was used until now; `tool` is the contestant's process."""
        at = time.monotonic()
        groups = {"tool": tree_of(tool), **self._servers}
        cpu = {name: sum(map(cpu_seconds, pids)) for name, pids in groups.items()}
        return Sample(at, cpu, self._wire_bytes())

    def _wire_bytes(self) -> int:
        """Bytes that mongod sent and received so far, as it counts them."""
        if self._client is None:
            return 0
        network = self._client.admin.command("serverStatus")["network"]
        return int(network["bytesIn"] + network["bytesOut"])

    def between(self, first: Sample, last: Sample, events: int) -> dict[str, float]:
        """The rate, and what 1 event cost."""
        seconds = max(last.at - first.at, 1e-9)
        used = {f"{name}_us": (last.cpu[name] - first.cpu[name]) / events * 1e6 for name in last.cpu}
        wire = {"wire_bytes": (last.wire_bytes - first.wire_bytes) / events} if self._client else {}
        return {"rate": events / seconds, **used, **wire}
