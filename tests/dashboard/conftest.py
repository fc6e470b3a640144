"""A whole pipeline of real parts, and its dashboard: shared by the tests that only look at it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from dashboard_site import CONTROL_TOKEN, TOKEN, Site, dashboard, free_port, running, write_settings
from tailrace.stand import Kafka, Redis, ReplicaSet
from waiting import wait_until as until


@dataclass
class Pipeline:
    """MongoDB, Kafka and Redis, a producer process and a dashboard process."""

    site: Site
    client: MongoClient[dict[str, Any]]
    folder: Path
    redis_url: str
    producer: str
    """Its endpoint."""

    @property
    def orders(self) -> Any:
        """The collection that is captured."""
        return self.client.dashboard.orders


@pytest.fixture(scope="session")
def pipeline(shared_replica_sets: Any, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """One pipeline for all tests of this process, with a Redis that has no other features."""
    with Redis.start(folder=tmp_path_factory.mktemp("dashboard-redis")) as redis_server:
        yield from _pipeline(shared_replica_sets, kafka, redis_server, tmp_path_factory)


def _pipeline(
    shared_replica_sets: Any, kafka: Kafka, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    mongodb: ReplicaSet = shared_replica_sets.of_version("6.0.5")
    folder = tmp_path_factory.mktemp("dashboard")
    port = free_port()
    producer = f"http://127.0.0.1:{port}"
    settings = write_settings(
        folder,
        mongodb={"uri": mongodb.uri},
        capture={
            "name": "orders",
            "namespaces": ["dashboard"],
            "sink": f"kafka://{kafka.bootstrap_servers}",
            "topic_prefix": "dash",
            "partitions": 2,
            "position_store": f"file:{folder / 'positions'}",
        },
        monitor={"metrics_port": port, "control_token": CONTROL_TOKEN, "every_seconds": 1},
        features={"redis_url": redis_server.url},
        warehouse={"folder": folder / "warehouse"},
        dashboard={"token": TOKEN, "control_token": CONTROL_TOKEN, "producers": [producer]},
    )
    with mongodb.client() as client:
        client.drop_database("dashboard")
        client.dashboard.orders.insert_one({"_id": "first", "city": "Bergen"})
        with running("produce", settings), dashboard(settings) as site:
            found = Pipeline(site, client, folder, redis_server.url, producer)
            until(lambda: site.get("/api/events"), "the first event")
            until(lambda: site.get("/api/oplog"), "the oplog")
            yield found
