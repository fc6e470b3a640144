"""OpenLineage: what jobs tell of their datasets, beside what its own listener tells; the receiver is of the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tailrace.owned import OwnedThread
from tailrace.spark.lineage import (
    Lineage,
    collection_datasets,
    lineage_of,
    location_dataset,
    redis_dataset,
    topic_datasets,
)

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
        thread = OwnedThread(made._server.serve_forever, name="lineage-receiver")
        thread.start()
        try:
            yield made
        finally:
            made._server.shutdown()
            thread.join(10)
            made._server.server_close()


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


@pytest.mark.long
@pytest.mark.xdist_group("spark")
def test_without_a_listener_nobody_is_told(spark: Any) -> None:
    assert not lineage_of(spark, "job").is_on
