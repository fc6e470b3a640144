"""Real servers for the tests: shared per test process where that is safe, private where a test breaks things."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis
from pymongo.database import Database

from fault_proxies import FaultProxy
from replica_sets import SharedReplicaSets, skip_unless_it_runs
from sharded_counters import Counters
from tailrace.stand import Kafka, Postgres, Redis, ReplicaSet, ShardedCluster
from tailrace.stand.mongod_binary import DEFAULT_VERSION

SHARED = Path(__file__).resolve().parents[2] / "shared"
_database_numbers = itertools.count()

# A runner in the background may have Ctrl-C ignored, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine must not fail a property test: how long an example takes proves nothing.
hypothesis.settings.register_profile("tailrace", deadline=None)
hypothesis.settings.load_profile("tailrace")


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder with what real servers made of real oplogs."""
    return Path(__file__).parent / "data" / "recordings"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with conformance data that is not ours to publish; tests that need it skip without it."""
    if not (SHARED / "DESIGN.md").exists():
        pytest.skip("the folder ../shared with conformance data is not here")
    return SHARED


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each server version that its `mongodb` marker names."""
    marker = metafunc.definition.get_closest_marker("mongodb")
    if marker and "mongodb" in metafunc.fixturenames:
        metafunc.parametrize("mongodb", marker.args, indirect=True, scope="session")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Say where the logs of a failed test's servers are; they stay in pytest's temporary folder."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        logs = [str(path) for value in getattr(item, "funcargs", {}).values() for path in _logs_of(value)]
        if logs:
            report.sections.append(("Logs of the servers", "\n".join(logs)))


def _logs_of(value: object) -> list[Path]:
    if isinstance(value, ReplicaSet):
        return [node.log for node in value.nodes]
    if isinstance(value, ShardedCluster):
        return [node.log for shard in value.shards.values() for node in shard.nodes]
    if isinstance(value, Path):
        return sorted(value.rglob("*.log"))
    return []


@pytest.fixture(scope="session")
def shared_replica_sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedReplicaSets]:
    """The sets that tests of this process share."""
    sets = SharedReplicaSets(tmp_path_factory.mktemp("mongodb"))
    yield sets
    sets.close()


@pytest.fixture(scope="session")
def mongodb(request: pytest.FixtureRequest, shared_replica_sets: SharedReplicaSets) -> ReplicaSet:
    """A shared one-node replica set, 6.0.5 unless the test is marked with other versions."""
    return shared_replica_sets.of_version(getattr(request, "param", "6.0.5"))


@pytest.fixture
def database(mongodb: ReplicaSet) -> Iterator[Database[dict[str, Any]]]:
    """An empty database on `mongodb`, dropped after the test."""
    with mongodb.client() as client:
        name = f"test{next(_database_numbers)}"
        client.drop_database(name)
        yield client[name]
        client.drop_database(name)


@pytest.fixture
def start_mongodb(tmp_path: Path) -> Iterator[Callable[..., ReplicaSet]]:
    """Start private replica sets that end with the test: `start_mongodb(version, nodes=3, ...)`."""
    numbers = itertools.count()
    with ExitStack() as running:

        def start(*arguments: Any, **options: Any) -> ReplicaSet:
            skip_unless_it_runs(options.get("version") or (arguments or (DEFAULT_VERSION,))[0])
            folder = tmp_path / f"replica-set-{next(numbers)}"
            return running.enter_context(ReplicaSet.start(*arguments, folder=folder, **options))

        yield start


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A shared broker; tests use topics of their own."""
    with Kafka.start(folder=tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """The Redis server that tests of this process share."""
    with Redis.start(folder=tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(shared_redis: Redis) -> Redis:
    """A shared Redis server without any keys."""
    with redis.Redis.from_url(shared_redis.url) as client:
        client.flushall()
    return shared_redis


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The Spark session that tests of this process share; its JVM ends with the process."""
    import pyspark

    from tailrace.cli.spark_session import spark_session
    from tailrace.settings import SparkSettings
    from tailrace.spark.connectors import connectors_of

    with spark_session(
        SparkSettings(master="local[2,4]", driver_memory="1g", log_level="error"),
        table_format="delta" if connectors_of(pyspark.__version__).delta else "iceberg",
    ) as session:
        yield session


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A shared PostgreSQL server; tests use tables of their own."""
    with Postgres.start(folder=tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start private servers that end with the test: `start_server(Kafka, {"message.max.bytes": 3_000})`."""
    numbers = itertools.count()
    with ExitStack() as running:

        def start(kind: Any, *arguments: Any, **options: Any) -> Any:
            folder = tmp_path / f"server-{next(numbers)}"
            return running.enter_context(kind.start(*arguments, folder=folder, **options))

        yield start


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[int], FaultProxy]]:
    """Put proxies before loopback ports for one test: `fault_proxy(server.port)`."""
    with ExitStack() as running:
        yield lambda port: running.enter_context(FaultProxy.start(port))


@pytest.fixture(scope="session")
def shared_sharded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedCluster]:
    """A shared cluster of three shards, whose idle ones write nothing by themselves."""
    quiet = {"writePeriodicNoops": False}
    with ShardedCluster.start(shards=3, parameters=quiet, folder=tmp_path_factory.mktemp("sharded")) as cluster:
        yield cluster


@pytest.fixture
def counters(shared_sharded: ShardedCluster) -> Counters:
    """A collection of its own on that cluster, a part of it on each shard."""
    return Counters(shared_sharded, f"test{next(_database_numbers)}")


@pytest.fixture
def start_sharded(tmp_path: Path) -> Iterator[Callable[..., ShardedCluster]]:
    """Start private sharded clusters that end with the test: `start_sharded(version, shards=3, ...)`."""
    with ExitStack() as running:

        def start(*arguments: Any, **options: Any) -> ShardedCluster:
            skip_unless_it_runs(options.get("version") or (arguments or (DEFAULT_VERSION,))[0])
            return running.enter_context(ShardedCluster.start(*arguments, folder=tmp_path / "sharded", **options))

        yield start
