"""pymongo's own tests of change streams, through a gateway that presents itself as a replica set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.pymongo_suite import MODULES, counted, run_suite
from gateway.running_gateway import RunningGateway
from tailrace.gateway import Presentation
from tailrace.stand import ReplicaSet

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "many-watchers.md"
SAMPLE = (
    "TestCollectionChangeStream.test_read_concern",
    "TestCollectionChangeStream.test_resumetoken_uniterated_nonempty_batch_resumeafter",
    "TestCollectionChangeStream.test_resumetoken_empty_batch",
    "TestDatabaseChangeStream.test_simple",
    "TestClusterChangeStream.test_try_next_runs_one_getmore",
)


def _presented(start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet) -> RunningGateway:
    return start_gateway(mongodb.uri, present=Presentation.REPLICA_SET)


def test_a_sample_passes(start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet) -> None:
    gateway = _presented(start_gateway, mongodb)
    outcomes = run_suite(gateway.port, *(f"{MODULES['sync']}.{name}" for name in SAMPLE))
    assert set(outcomes.values()) == {"passed"}
    assert len(outcomes) == len(SAMPLE)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.mongodb("4.2.6", "4.4.2", "5.0.4", "6.0.5", "6.0.27", "7.0.28")
def test_each_test_ends_as_on_the_server(start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet) -> None:
    """And the documentation has the numbers.

    The server goes first, alone: a gateway's own reads would use up the fail points that are set on it.
    """
    direct = {module: run_suite(mongodb.primary.port, module) for module in MODULES.values()}
    gateway = _presented(start_gateway, mongodb)
    row = [mongodb.version]
    for module, expected in direct.items():
        through = run_suite(gateway.port, module)
        assert through == expected
        assert sum(counted(through)) == len(through)
        row.append("{} / {}".format(*counted(through)))
    assert f"| {' | '.join(row)} |" in PAGE.read_text(), row
