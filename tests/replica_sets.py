"""One-node replica sets that several tests use, by server version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.stand import ReplicaSet
from tailrace.stand.mongod_binary import MongodBinary


def skip_unless_it_runs(version: str) -> None:
    """Skip a test whose server cannot run on this machine, and say why."""
    if (reason := MongodBinary.why_not(version)) is not None:
        pytest.skip(f"MongoDB {version} cannot run here: {reason}")


class SharedReplicaSets:
    """One-node replica sets by version, started when first asked for and ended with the test process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, ReplicaSet] = {}

    def of_version(self, version: str) -> ReplicaSet:
        """The shared set of this version; skips the test where that cannot run."""
        skip_unless_it_runs(version)
        if version not in self._running:
            folder = self._folder / version
            self._running[version] = ReplicaSet.start(version, folder=folder)
        return self._running[version]

    def close(self) -> None:
        """End all of them."""
        for replica_set in self._running.values():
            replica_set.close()
