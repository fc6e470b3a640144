"""The specification's test data, and for each test the servers that it allows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bson import json_util
from pymongo.database import Database

from driver.shells import SHELLS
from tailrace.driver import ResumeRules
from tailrace.errors import StandError
from tailrace.stand import MONGODB_VERSIONS
from tailrace.stand.cache import SourceDistribution, report_progress, unpacked_source
from tailrace.stand.mongod_binary import WINDOWS_VERSIONS

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "conformance" / "spec-tests"
"""Older sets, that of the first format among them: no package on a registry has those."""
PYMONGO = SourceDistribution("pymongo", "4.17.0", "70ffa08ba641468cc068cf46c06b34f01a8ce3489f6411309fcb5ceabe6b2fc0")
"""Its tests have the specification's, in the unified format."""
_IN_PYMONGO = {
    "unified": ("change_streams/unified/*.json",),
    "related": (
        "retryable_reads/unified/changeStreams-*.json",
        "csot/change-streams.json",
        "load_balancer/cursors.json",
        "unified-test-format/valid-pass/poc-change-streams.json",
    ),
}
NOT_HERE = pytest.mark.skip("this set of the specification's tests is not here, and cannot be fetched")
TOPOLOGIES = ("replicaset", "single")
"""What exists here; no registry has a `mongos` to make the others."""

EXTENDED_JSON = json_util.JSONOptions(json_mode=json_util.JSONMode.RELAXED, tz_aware=False)


Requirements = Callable[["Case"], Iterable[list[Mapping[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Case:
    """One test of one file, with the file's own fields."""

    file: str
    header: Mapping[str, Any]
    test: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.file}: {self.test['description']}"

    @property
    def rules(self) -> ResumeRules:
        """Each set is run under the rules of its time: the allow-list came with the set of 2020."""
        return ResumeRules.VERSION_1_6 if "2019-11" in self.file else ResumeRules.ALLOW_LIST


@dataclass(frozen=True, slots=True)
class Server:
    """A kind of server to run a case against."""

    version: str
    topology: str


def load(*folders: str) -> list[Case]:
    """Read all tests in these folders; a test that several sets have in the same words is one case."""
    found: dict[str, Case] = {}
    for name, path in (file for folder in folders for file in _files(folder)):
        content = json_util.loads(path.read_text(), json_options=EXTENDED_JSON)
        header = {key: value for key, value in content.items() if key != "tests"}
        for test in content["tests"]:
            case = Case(name, header, test)
            found.setdefault(f"{case.rules} {json_util.dumps([header, test])}", case)
    return list(found.values())


def _files(folder: str) -> Iterator[tuple[str, Path]]:
    """Give the files of a set, fetched ones first, each with a name that tells it from others."""
    fetched = _fetched() if folder in _IN_PYMONGO else None
    if fetched is not None:
        for pattern in _IN_PYMONGO[folder]:
            for path in sorted(fetched.glob(pattern)):
                yield f"{folder}/{path.relative_to(fetched).with_suffix('')}", path
    for path in sorted((BESIDE / folder).rglob("*.json"), reverse=True):
        yield str(path.relative_to(BESIDE).with_suffix("")), path


@cache
def _fetched() -> Path | None:
    """Give the folder of pymongo's tests, None where it cannot be fetched."""
    try:
        return unpacked_source(PYMONGO) / "test"
    except StandError as error:
        report_progress(f"the specification's tests are not here: {error}")
        return None


def parameters(cases: Iterable[Case], requirements: Requirements) -> list[Any]:
    """Each case with each server that it allows and each shell; a case that allows none is skipped, saying why.

    `make conformance` runs all of them. `make test` leaves out what repeats: the first format says the same as
    the unified one, and what differs between the shells is not what differs between servers.
    """
    cases = list(cases)
    if not cases:
        return [pytest.param(None, None, None, marks=NOT_HERE)]
    return [parameter for case in cases for parameter in _of_case(case, list(requirements(case)))]


def _of_case(case: Case, wanted: list[list[Mapping[str, Any]]]) -> Iterator[Any]:
    groups = [group for group in wanted if group]
    servers = [
        Server(version, topology)
        for version in sorted(MONGODB_VERSIONS, key=numbered)
        for topology in TOPOLOGIES
        if all(any(allows(one, version, topology) for one in group) for group in groups)
    ]
    if not servers:
        reason = f"the test itself allows only {json.dumps(groups)}"
        yield pytest.param(case, None, None, id=case.name, marks=pytest.mark.skip(reason))
    for server in servers:
        for shell in SHELLS:
            on_linux = [other for other in servers if other.version not in WINDOWS_VERSIONS]
            if server in on_linux:
                extra = _repeats(case, shell, on_linux.index(server), len(on_linux) - 1)
            else:
                extra = (case.file, server.topology, shell) != _SAMPLE
            name = f"{case.name}-{server.version}-{server.topology}-{shell}"
            yield pytest.param(case, server, shell, id=name, marks=[pytest.mark.long] if extra else [])


_SAMPLE = ("unified/change_streams/unified/change-streams", "replicaset", "sync")
"""What is always run on servers that need Wine."""


def _repeats(case: Case, shell: str, index: int, last: int) -> bool:
    """Whether a run is left to `make conformance`."""
    if case.file.startswith("unified"):
        return shell == "async" and index not in (0, last)
    return index not in ((0, last) if shell == "sync" else (last,))


def allows(requirement: Mapping[str, Any], version: str, topology: str) -> bool:
    """Whether a requirement of a test fits a server."""
    number = numbered(version)
    return (
        numbered(requirement.get("minServerVersion", "0")) <= number
        and number <= numbered(requirement.get("maxServerVersion", "999"))
        and topology in requirement.get("topologies", TOPOLOGIES)
        and requirement.get("serverless") != "require"
    )


def numbered(version: str) -> tuple[int, ...]:
    """A version as numbers; 4.2 is 4.2.0."""
    parts = [int(part) for part in version.split(".")]
    return tuple(parts + [0] * (3 - len(parts)))


def drop_collections(database: Database[Any]) -> None:
    """Empty a database: the same to a change stream as dropping it, in a fraction of the time."""
    for name in database.list_collection_names(filter={"name": {"$not": {"$regex": "^system\\."}}}):
        database.drop_collection(name)
