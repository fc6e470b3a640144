"""The specification's own tests, which our driver passes on servers, through the gateway before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from driver.shells import SHELLS
from driver.spec_cases import SPEC_TESTS, Case, allows, load
from driver.test_legacy_spec import run_legacy
from driver.test_unified_spec import FOLDERS, run_unified
from gateway.running_gateway import RunningGateway
from tailrace.gateway import GatewayOptions

VERSIONS = ("6.0.5", "4.2.6", "4.4.2", "5.0.4", "6.0.27")
"""The unified tests are always run with the first one; all others by `make conformance`."""


def _parameters(cases: list[Case], groups_of: Callable[[Case], list[Any]]) -> Iterator[Any]:
    if not SPEC_TESTS.is_dir():
        yield pytest.param(None, "", marks=pytest.mark.skip("the conformance data is not here"))
    for case in cases:
        groups = [group for group in groups_of(case) if group]
        for version in VERSIONS:
            if all(any(allows(one, version, "replicaset") for one in group) for group in groups):
                repeats = version != VERSIONS[0] or not case.file.startswith("unified")
                marks = [pytest.mark.long] if repeats else []
                yield pytest.param(case, version, id=f"{case.name}-{version}", marks=marks)


def _unified_groups(case: Case) -> list[Any]:
    return [part.get("runOnRequirements", []) for part in (case.header, case.test)]


def _legacy_groups(case: Case) -> list[Any]:
    limits = {key: case.test[key] for key in ("minServerVersion", "maxServerVersion") if key in case.test}
    return [[{**limits, "topologies": case.test["topology"]}]]


@pytest.fixture(scope="module")
def gateway_of(shared_replica_sets: Any) -> Iterator[Callable[[str], str]]:
    """The URI of a gateway before a server of a version."""
    running: dict[str, RunningGateway] = {}
    with ExitStack() as stack:

        def uri(version: str) -> str:
            if version not in running:
                upstream = shared_replica_sets.of_version(version).uri
                made = RunningGateway(upstream, GatewayOptions(test_commands=True))
                running[version] = stack.enter_context(closing(made))
            return running[version].uri

        yield uri


@pytest.mark.parametrize(("case", "version"), list(_parameters(load(*FOLDERS), _unified_groups)))
def test_unified(case: Case, version: str, gateway_of: Callable[[str], str]) -> None:
    run_unified(case, SHELLS["sync"](), gateway_of(version))


@pytest.mark.parametrize(("case", "version"), list(_parameters(load("legacy"), _legacy_groups)))
def test_legacy(case: Case, version: str, gateway_of: Callable[[str], str]) -> None:
    run_legacy(case, SHELLS["sync"](), gateway_of(version))
