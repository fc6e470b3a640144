"""OpenLineage: what jobs tell of their datasets, beside what its own listener tells; the receiver is of the tests.

`make telemetry` runs the jobs, with OpenLineage's listener from Maven.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from listening import serving_http
from tailrace.cli.spark_session import fetched_connectors
from tailrace.owned import run_guarded
from tailrace.spark.lineage import (
    Lineage,
    collection_datasets,
    location_dataset,
    redis_dataset,
    topic_datasets,
)
from tailrace.stand import Redis, ReplicaSet
from tailrace.stand.java import java_home
from tailrace.stand.maven import fetch_jars

LISTENER = "io.openlineage:openlineage-spark_2.13:1.53.0"
CHECKSUMS = {
    "openlineage-spark_2.13-1.53.0.jar": "5d84b0ae7e72909b5aae7ed87df878bf06b28d9ac3005765c3529d0a66dbae6f",
}


class LineageReceiver:
    """Keeps the events that are posted, with the bearer token."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.events.append((self.path, self.headers.get("Authorization", ""), event))
                self.send_response(201)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def of_job(self, name: str) -> list[tuple[str, set[tuple[str, str]], set[tuple[str, str]]]]:
        """The kinds, inputs and outputs of the events of a job, in order."""
        return [
            (event["eventType"], *({(each["namespace"], each["name"]) for each in event[side]} for side in _SIDES))
            for _, _, event in self.events
            if event["job"]["name"] == name
        ]

    @classmethod
    @contextmanager
    def serve(cls) -> Iterator[LineageReceiver]:
        made = cls()
        with serving_http(made._server, "lineage-receiver"):
            yield made


_SIDES = ("inputs", "outputs")


def test_a_run_is_told_from_its_start_to_its_end() -> None:
    source, target = topic_datasets("a:9092,b:9092", "shop.orders"), redis_dataset("redis://:pw@h/0", "spending")
    with LineageReceiver.serve() as receiver:
        with Lineage(receiver.url, "/api/v1/lineage", "ns", "tailrace.features.spending", "secret") as lineage:
            lineage.uses(source, [target])
            lineage.uses(source, [target])
        with pytest.raises(ValueError, match="x"), Lineage(receiver.url, "/api/v1/lineage", "ns", "failing"):
            raise ValueError("x")
        known = {("kafka://a:9092", "shop.orders")}, {("redis://h:6379", "spending")}
        assert receiver.of_job("tailrace.features.spending") == [
            ("START", set(), set()),
            ("RUNNING", *known),
            ("COMPLETE", *known),
        ]
        assert [kind for kind, *_ in receiver.of_job("failing")] == ["START", "FAIL"]
        assert {(path, bearer) for path, bearer, _ in receiver.events} == {
            ("/api/v1/lineage", "Bearer secret"),
            ("/api/v1/lineage", ""),
        }
        runs = [event["run"]["runId"] for _, _, event in receiver.events]
        assert len(set(runs[:3])) == 1
        assert len(set(runs)) == 2


def test_datasets_are_named_without_secrets() -> None:
    named = [
        *topic_datasets("kafka://user:pw@a:9093,b:9093?ssl.ca.location=x", "t,u"),
        *collection_datasets("mongodb://user:pw@a:1,b:2/?replicaSet=r", ["shop.orders"]),
        redis_dataset("rediss://user:pw@h:7/0", "spending"),
        location_dataset("file:/lake/shop/orders/"),
        location_dataset("/lake/shop/orders"),
        location_dataset("s3://bucket/lake/shop/orders"),
    ]
    assert [(each.namespace, each.name) for each in named] == [
        ("kafka://a:9093", "t"), ("kafka://a:9093", "u"), ("mongodb://a:1", "shop.orders"),
        ("redis://h:7", "spending"), ("file", "/lake/shop/orders"), ("file", "/lake/shop/orders"),
        ("s3://bucket", "lake/shop/orders"),
    ]  # fmt: skip


def test_a_receiver_that_is_away_stops_nothing() -> None:
    with Lineage("http://127.0.0.1:9", "/api/v1/lineage", "ns", "job") as lineage:
        lineage.uses(topic_datasets("a:1", "t"))


def job_of(folder: Path, mongodb: ReplicaSet, redis_server: Redis, receiver: LineageReceiver, *words: str) -> None:
    """Run a job in a process of its own, with the listener."""
    jars = [*fetched_connectors(), *fetch_jars("openlineage", (LISTENER,), CHECKSUMS)]
    config = {
        "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
        "spark.openlineage.transport.type": "http",
        "spark.openlineage.transport.url": receiver.url,
        "spark.openlineage.namespace": "shop",
    }
    file = folder / "tailrace.toml"
    file.write_text(
        f'[mongodb]\nuri = "{mongodb.uri}"\n[features]\nredis_url = "{redis_server.url}"\n'
        f'[warehouse]\nfolder = "{folder}/lake"\n[spark]\njars = {json.dumps([str(jar) for jar in jars])}\n'
        f'checkpoints = "{folder}/checkpoints"\n[spark.config]\n'
        + "".join(f'"{key}" = "{value}"\n' for key, value in config.items())
    )
    command = [sys.executable, "-m", "tailrace.cli.app", "--config", str(file), *words]
    ended = run_guarded(command, capture_output=True, text=True, timeout=900, env={**os.environ, **java()})
    assert ended.returncode == 0, ended.stderr


def java() -> dict[str, str]:
    return {"JAVA_HOME": str(java_home())}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("spark")
def test_jobs_tell_what_the_listener_does_not_see(
    mongodb: ReplicaSet, redis_server: Redis, database: Any, tmp_path: Path
) -> None:
    """The listener has the tables, and nothing of where their rows come from; both name a table alike."""
    database.tx.insert_one({"_id": 1, "user": "u", "amount": 5.0, "at": datetime.now(UTC)})
    source = {(f"mongodb://{mongodb.nodes[0].address}", f"{database.name}.tx")}
    tables = {("file", f"{tmp_path}/lake/{database.name}/{name}") for name in ("tx", "tx_history")}
    definition = tmp_path / "spending.toml"
    definition.write_text(
        f'name = "spending"\nnamespace = "{database.name}.tx"\nentity = "user"\ntime = "at"\n'
        '[[feature]]\nname = "spent"\nkind = "sum"\nof = "amount"\nwindow = "1h"\n'
    )
    with LineageReceiver.serve() as receiver:
        work = tmp_path, mongodb, redis_server, receiver
        job_of(*work, "warehouse", "run", f"{database.name}.tx", "--backfill", "--once")
        told = receiver.of_job("tailrace.tables")
        assert [kind for kind, *_ in told] == ["START", "RUNNING", "COMPLETE"]
        assert told[-1] == ("COMPLETE", source, tables)
        others = [event for _, _, event in receiver.events if event["job"]["name"] != "tailrace.tables"]
        seen = {(each["namespace"], each["name"]) for event in others for each in event["outputs"]}
        assert tables <= seen
        assert not source & {(each["namespace"], each["name"]) for event in others for each in event["inputs"]}
        job_of(*work, "features", str(definition), "--backfill", "--once")
        told = receiver.of_job("tailrace.features.spending")
        assert told[-1] == ("COMPLETE", source, {(f"redis://{redis_server.address}", "spending")})
