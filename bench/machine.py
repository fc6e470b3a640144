"""What the figures were measured on: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.peers import DEBEZIUM, MONGO_KAFKA, MONGO_SPARK
from bench.result import Result
from tailrace.stand import kafka
from tailrace.stand.mongod_binary import DEFAULT_VERSION

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("tailrace", "pymongo", "confluent-kafka", "pyspark", "pyarrow", "redis", "orjson")


def new_result(mode: str) -> Result:
    """An empty result of a run that begins now."""
    return Result(
        mode=mode,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_git("rev-parse", "--short", "HEAD") or "unknown",
        dirty=bool(_git("status", "--porcelain", "--untracked-files=no")),
        machine=_machine(),
        versions=_versions(),
    )


def _machine() -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": model,
        "cores": os.cpu_count() or 1,
        "memory_gb": round(memory, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "mongodb": DEFAULT_VERSION, "kafka": kafka.VERSION}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {peer.title: peer.version for peer in (DEBEZIUM, MONGO_KAFKA, MONGO_SPARK)}


def _git(*arguments: str) -> str:
    try:
        answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
