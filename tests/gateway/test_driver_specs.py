"""The specification's own tests, which our driver passes on servers, through the gateway before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from driver.shells import SHELLS, SyncShell
from driver.spec_cases import NOT_HERE, Case, allows, load
from driver.test_legacy_spec import run_legacy
from driver.test_unified_spec import FOLDERS, run_unified
from gateway.running_gateway import RunningGateway
from tailrace.cluster import ClusterHub
from tailrace.gateway import GatewayOptions
from tailrace.stand import ShardedCluster

VERSIONS = ("6.0.5", "4.2.6", "4.4.2", "5.0.4", "6.0.27", "7.0.28")
"""The unified tests are always run with the first one; all others by `make conformance`."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """What is behind the gateway: a replica set, or a cluster of some shards."""

    version: str
    shards: int = 0

    def __str__(self) -> str:
        return f"{self.version} with {self.shards} shards" if self.shards else self.version

    @property
    def topology(self) -> str:
        return "sharded" if self.shards else "replicaset"


class PymongoShell(SyncShell):
    """pymongo's own `watch` in the place of ours."""

    name = "pymongo"

    def watch(self, target: Any, pipeline: Any = None, *, rules: Any = None, **options: Any) -> Any:
        return target.watch(pipeline, **options)


GATEWAY_SHELLS: dict[str, Callable[[], Any]] = {**SHELLS, PymongoShell.name: PymongoShell}
UPSTREAMS = (*map(Upstream, VERSIONS), Upstream("6.0.5", 2), Upstream("6.0.5", 1), Upstream("6.0.5", 3))


def _parameters(cases: list[Case], groups_of: Callable[[Case], list[Any]]) -> Iterator[Any]:
    if not cases:
        yield pytest.param(None, None, "", marks=NOT_HERE)
    for case in cases:
        groups = [group for group in groups_of(case) if group]
        for upstream in UPSTREAMS:
            if all(any(allows(one, upstream.version, upstream.topology) for one in group) for group in groups):
                for shell in GATEWAY_SHELLS:
                    if shell == PymongoShell.name and not case.file.startswith("unified/"):
                        continue  # the older rules, and timeouts of its own, are ours alone
                    is_first = upstream == UPSTREAMS[0] and shell == "sync" and case.file.startswith("unified")
                    marks = [] if is_first else [pytest.mark.long]
                    if "shardCollection" in case.name:
                        marks = [pytest.mark.skip("only a mongos has the command shardCollection")]
                    yield pytest.param(case, upstream, shell, id=f"{case.name}-{upstream}-{shell}", marks=marks)


def _unified_groups(case: Case) -> list[Any]:
    return [part.get("runOnRequirements", []) for part in (case.header, case.test)]


def _legacy_groups(case: Case) -> list[Any]:
    limits = {key: case.test[key] for key in ("minServerVersion", "maxServerVersion") if key in case.test}
    return [[{**limits, "topologies": case.test["topology"]}]]


@pytest.fixture(scope="module")
def gateway_of(shared_replica_sets: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """The URI of a gateway before an upstream.

    No registry has a `mongos`, so that what is no change stream goes to the first shard, which has all documents.
    """
    running: dict[Upstream, RunningGateway] = {}
    with ExitStack() as stack:

        def start(upstream: Upstream) -> RunningGateway:
            options = GatewayOptions(test_commands=True)
            if not upstream.shards:
                return RunningGateway(shared_replica_sets.of_version(upstream.version).uri, options)
            folder = tmp_path_factory.mktemp("sharded")
            cluster = ShardedCluster.start(upstream.version, shards=upstream.shards, folder=folder)
            stack.enter_context(cluster)
            return RunningGateway(cluster.shards["s0"].uri, options, ClusterHub(cluster.config.uri))

        def uri(upstream: Upstream) -> str:
            if upstream not in running:
                running[upstream] = stack.enter_context(closing(start(upstream)))
            return running[upstream].uri

        yield uri


@pytest.mark.parametrize(("case", "upstream", "shell"), list(_parameters(load(*FOLDERS), _unified_groups)))
def test_unified(case: Case, upstream: Upstream, shell: str, gateway_of: Callable[..., str]) -> None:
    """`make conformance` runs all: other versions, clusters of one to three shards, the other shell."""
    _run(run_unified, case, shell, gateway_of(upstream))


@pytest.mark.parametrize(("case", "upstream", "shell"), list(_parameters(load("legacy"), _legacy_groups)))
def test_legacy(case: Case, upstream: Upstream, shell: str, gateway_of: Callable[..., str]) -> None:
    _run(run_legacy, case, shell, gateway_of(upstream))


def _run(run: Callable[..., None], case: Case, shell: str, uri: str) -> None:
    with closing(GATEWAY_SHELLS[shell]()) as driver:
        run(case, driver, uri)
