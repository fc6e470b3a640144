"""Tables and checkpoints in a bucket: jobs by Spark's own settings, readers without Spark by the same (`make object-store`).

The server is moto's, which checks signatures and policies and keeps its objects in memory; it is not AWS.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from s3_server import S3, jars
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.settings import Settings, WarehouseSettings
from tailrace.warehouse.query import ask
from warehouse_load import Load, Topic, documents, now

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]
SECONDS = 600.0
LAKE, KEPT = "s3a://lake/tables", "s3a://kept/checkpoint"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3.start(["lake", "kept"], folder=tmp_path_factory.mktemp("s3")) as server:
        yield server


class Site:
    """A folder with settings, in which verbs run, each a process of its own."""

    def __init__(self, folder: Path, config: Mapping[str, str], *, needs_jars: bool = True, lake: str = LAKE) -> None:
        self.folder = folder
        self.lake = lake
        chosen = {**config, **({"spark.jars": ",".join(map(str, jars()))} if needs_jars else {})}
        lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in chosen.items()]
        text = ["[spark]", 'master = "local[2,4]"', "[spark.config]", *lines, "[warehouse]", f"folder = {json.dumps(lake)}"]
        (folder / "tailrace.toml").write_text("\n".join(text))

    @property
    def settings(self) -> Settings:
        return Settings.load(self.folder / "tailrace.toml", {})

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tailrace.cli.app", *arguments]

    def run(self, *arguments: str, **environment: str) -> CompletedProcess[str]:
        return run_guarded(
            self.command(*arguments),
            cwd=self.folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def done(self, *arguments: str, **environment: str) -> str:
        """Run a verb that has to succeed; gives what it printed."""
        done = self.run(*arguments, **environment)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout + done.stderr

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        settings = self.settings
        with ask(query, settings.warehouse, spark_config=settings.spark.config) as answer:
            return list(answer.rows)

    def differences(self, collection: Any) -> list[Any]:
        """The documents in which a mirror and its collection differ."""
        name = f'"{collection.database.name}"."{collection.name}"'
        rows = self.rows(f"SELECT _bson FROM {name} WHERE NOT _is_deleted")
        ours = {repr(bson.decode(row[0])["_id"]): bytes(row[0]) for row in rows}
        assert len(ours) == len(rows)
        theirs = documents(collection)
        return [key for key in sorted(ours.keys() | theirs.keys()) if ours.get(key) != theirs.get(key)]


def test_a_load_and_a_stream(s3: S3, mongodb: Any, database: Any, tmp_path: Path) -> None:
    """The one that is short: a load, batches of the driver after a restart from the checkpoint, and the answer."""
    began = time.time()
    orders, name = database.orders, database.name
    orders.insert_many([{"_id": number, "n": number % 7} for number in range(300)])
    site = Site(tmp_path, s3.spark_config())
    command = ["warehouse", "run", f"{name}.orders", "--uri", mongodb.uri, "--once", "--checkpoint", f"{KEPT}/{name}"]
    print(site.done(*command, "--backfill"), time.time() - began)
    assert site.rows(f"SELECT count(*), sum(n) FROM {name}.orders")[0][0] == 300
    orders.update_many({"_id": {"$lt": 50}}, {"$set": {"n": 100}})
    orders.delete_one({"_id": 299})
    print(said := site.done(*command, "--backfill"), time.time() - began)
    assert "going on from it, without a backfill" in said
    assert site.differences(orders) == []
