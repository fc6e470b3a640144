"""A REST catalog that fails: each batch is in the tables once, whatever its commit was answered (`make readers`)."""

from __future__ import annotations

import http.client
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rest_catalog import RestCatalog
from tailrace.settings import WarehouseSettings
from tailrace.spark.from_kafka import kafka_records
from tailrace.spark.supervising import supervise
from tailrace.warehouse.job import WarehouseJob
from tailrace.warehouse.lake import configure_catalog, open_lake
from warehouse_load import Load, Topic, differences, now

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]
TROUBLES = ("lost", "refused", "done and failed")
"""What happens to a commit: it is done and the answer is lost; it is not done, 503; it is done and answered by 500."""


class Front(BaseHTTPRequestHandler):
    """Passes requests on to a catalog; every fourth commit is in trouble once it is asked to."""

    protocol_version = "HTTP/1.1"

    def __init__(self, catalog: str, troubles: Troubles, *arguments: Any) -> None:
        self._catalog = catalog
        self._troubles = troubles
        super().__init__(*arguments)

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        trouble = self._troubles.next() if self.command == "POST" and "/tables/" in self.path else None
        if trouble == "refused":
            self._send(503, b"", {})
            return
        status, answer, headers = self._passed_on(body)
        if trouble == "lost":
            self.close_connection = True
            self.connection.shutdown(2)
        elif trouble == "done and failed":
            self._send(500, b"", {})
        else:
            self._send(status, answer, headers)

    def _passed_on(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        place = urlsplit(self._catalog)
        assert place.hostname is not None
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=120)
        kept = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "accept-encoding")}
        connection.request(self.command, self.path, body or None, kept)
        answer = connection.getresponse()
        try:
            return answer.status, answer.read(), {"Content-Type": answer.headers.get("Content-Type", "text/plain")}
        finally:
            connection.close()

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_POST = do_DELETE = do_HEAD = _answer

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


class Troubles:
    """Which commits are in trouble."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commits = 0
        self.is_on = False
        self.had: list[str] = []

    def next(self) -> str | None:
        with self._lock:
            if not self.is_on:
                return None
            self._commits += 1
            if self._commits % 4:
                return None
            self.had.append(TROUBLES[len(self.had) % len(TROUBLES)])
            return self.had[-1]


@contextmanager
def failing(catalog: str, troubles: Troubles) -> Iterator[str]:
    """A server in front of a catalog."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Front, catalog, troubles)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_commits_whose_answer_is_lost(spark, kafka, database, tmp_path: Path) -> None:
    """The first batches make tables and columns, which is Spark's; most of the others are the driver's."""
    topic, troubles, count = Topic(kafka, f"{database.name}-{uuid.uuid4().hex}"), Troubles(), 0
    with (
        RestCatalog.start(tmp_path / "lake", folder=tmp_path / "server") as catalog,
        failing(catalog.url, troubles) as url,
    ):
        chosen = WarehouseSettings(
            catalog=f"rest_{uuid.uuid4().hex[:8]}",
            catalog_config={"type": "rest", "uri": url},
            maintain_batches=2,
            compaction_share=1.0,
        )
        configure_catalog(spark, chosen)
        for seed in (5, 6):
            start = now(database.client)
            Load(database.orders, seed).run(150)
            count += topic.fill(database, start)
            records = kafka_records(spark, kafka.bootstrap_servers, topic.name, format="bson", limit=15)
            job = WarehouseJob(chosen, format="bson")
            supervise(lambda: job.start(records, str(tmp_path / "c"), availableNow=True))  # noqa: B023
            troubles.is_on = True
        lake = open_lake(spark, chosen)
        assert set(troubles.had) == set(TROUBLES)
        assert differences(lake.table((database.name, "orders")), database.orders) == []
        tokens = [row.token for row in lake.table((database.name, "orders_history")).select("token").collect()]
        assert (len(tokens), len(set(tokens))) == (count, count)
