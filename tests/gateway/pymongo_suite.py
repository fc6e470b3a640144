"""pymongo's own tests of change streams: fetched with its sources, checked by checksum, run in a process of their own.

Run as a program, it prints what became of each test: `python pymongo_suite.py FOLDER NAME...`.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import unittest
from pathlib import Path
from typing import Any

VERSION = "4.17.0"
_SHA256 = "70ffa08ba641468cc068cf46c06b34f01a8ce3489f6411309fcb5ceabe6b2fc0"
MODULES = {"sync": "test.test_change_stream", "async": "test.asynchronous.test_change_stream"}
_SECONDS = 900


def suite_folder() -> Path:
    """The folder with the package `test` of pymongo's source distribution, and nothing else of it."""
    from tailrace.owned import run_guarded
    from tailrace.stand.cache import made_once, sha256_of

    def fill(folder: Path) -> None:
        asked = ["--no-deps", "--no-binary", "pymongo", "--dest", str(folder), f"pymongo=={VERSION}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *asked]
        assert run_guarded(command, timeout=_SECONDS).returncode == 0
        (archive,) = folder.glob("*.tar.gz")
        assert sha256_of(archive) == _SHA256
        inside = f"pymongo-{VERSION}/test/"
        with tarfile.open(archive) as packed:
            for member in packed.getmembers():
                if member.name.startswith(inside):
                    member.name = member.name.removeprefix(f"pymongo-{VERSION}/")
                    packed.extract(member, folder, filter="data")
        archive.unlink()

    return made_once(f"pymongo-suite-{VERSION}", fill)


def run_suite(port: int, *names: str) -> dict[str, str]:
    """Run tests against what listens at a port; give what became of each."""
    from tailrace.owned import run_guarded

    folder = suite_folder()
    environment = {**os.environ, "DB_IP": "127.0.0.1", "DB_PORT": str(port), "PYTHONWARNINGS": "ignore"}
    done = run_guarded(
        [sys.executable, __file__, str(folder), *names],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def counted(outcomes: dict[str, str]) -> tuple[int, int]:
    """How many passed, and how many were skipped."""
    kinds = [outcome.partition(":")[0] for outcome in outcomes.values()]
    return kinds.count("passed"), kinds.count("skipped")


class _Outcomes(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        self.outcomes.setdefault(test.id(), "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        self.outcomes[test.id()] = f"skipped: {reason}"

    def addFailure(self, test: Any, err: Any) -> None:
        self.outcomes[test.id()] = f"failed: {self._exc_info_to_string(err, test)}"

    addError = addFailure

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addFailure(test, err)


def _main(folder: str, *names: str) -> None:
    sys.path[0:1] = [folder]
    result = _Outcomes()
    unittest.defaultTestLoader.loadTestsFromNames(names).run(result)
    print()
    print(json.dumps(result.outcomes))


if __name__ == "__main__":
    _main(*sys.argv[1:])
