"""The Spark jobs behind one stream: features in Redis, tables in Iceberg, and what both have to say at the end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import redis
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import StaticTable
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from feature_load import Load, equal_now, transactions_toml
from nemesis.services import Service
from nemesis.validators import Event
from nemesis.writers import CLIENT_OPTIONS
from spark_queries import python_workers
from tailrace.owned import OwnedThread

TRANSACTIONS = "tx"
"""The collection whose documents the features are made of."""
_EVERY_ROW = AlwaysTrue()
_SETTINGS = {
    "TAILRACE_SPARK__MASTER": "local[2,4]",
    "TAILRACE_SPARK__LOG_LEVEL": "error",
    "TAILRACE_WAREHOUSE__EVENTS_PER_BATCH": "5000",
}


class Jobs:
    """Both jobs as services, reading the topics of a stream."""

    def __init__(
        self, folder: Path, database: str, prefix: str, format_name: str, servers: str, redis_url: str
    ) -> None:
        self._lake = folder / "lake"
        self._database = database
        self._redis = redis_url
        self._name = f"nemesis_{database}"
        folder.mkdir(exist_ok=True, parents=True)
        definition = folder / "features.toml"
        definition.write_text(transactions_toml(f"{database}.{TRANSACTIONS}", self._name))
        topics = ["--servers", servers, "--topics", rf"/{prefix}\..*/", "--format", format_name]
        features = ["features", str(definition), "--redis", redis_url, "--checkpoint", str(folder / "features")]
        tables = ["warehouse", "run", "--checkpoint", str(folder / "warehouse"), "--folder", str(self._lake)]
        self.services = [
            _service("features", [*features, *topics], folder),
            _service("warehouse", [*tables, *topics], folder),
        ]

    def have_begun(self) -> bool:
        """Whether both have worked on a first batch."""
        with redis.Redis.from_url(self._redis) as client:
            return bool(client.exists(f"{self._name}:progress")) and self._table("orders_history") is not None

    def problems(self, uri: str, truth: Iterable[Event], collections: Iterable[str]) -> list[str]:
        """What is not as MongoDB has it: features, mirrors, histories."""
        found = []
        with MongoClient[Any](uri, **CLIENT_OPTIONS) as client, redis.Redis.from_url(self._redis) as signals:
            database = client[self._database]
            if not equal_now(signals, database[TRANSACTIONS], self._name):
                found.append("features differ from their recomputation")
            events = list(truth)
            for name in collections:
                found += self._differences(database[name], events)
        return found

    def _differences(self, collection: Any, truth: list[Event]) -> list[str]:
        """A mirror has the documents of its collection; a history has each event of the server's own stream once."""
        there = Counter(each["op"] for each in collection.find({"op": {"$nin": [None, "the beginning"]}}, {"op": 1}))
        mirrored = self._column(collection.name, "op", "_is_deleted = false")
        mirror = Counter(op for op in mirrored if op not in (None, "the beginning"))
        found = []
        if mirror != there:
            found.append(
                f"mirror of {collection.name}: lacks {list(there - mirror)[:3]}, has {list(mirror - there)[:3]}"
            )
        tokens = Counter(self._column(f"{collection.name}_history", "token"))
        wanted = {event.token for event in truth if event.namespace == collection.full_name}
        if missing := wanted - tokens.keys():
            found.append(f"history of {collection.name} lacks {len(missing)} events, first {min(missing)}")
        if twice := [token for token, count in tokens.items() if count > 1]:
            found.append(f"history of {collection.name} has {len(twice)} events twice, first {twice[0]}")
        return found

    def _column(self, table: str, column: str, row_filter: str | BooleanExpression = _EVERY_ROW) -> list[Any]:
        """Read a column; nothing while it is not there yet, or the job replaces the very files that are being read."""
        try:
            found = self._table(table)
            if found is None or column not in found.schema().column_names:
                return []
            return list(found.scan(row_filter, selected_fields=(column,)).to_arrow()[column].to_pylist())
        except FileNotFoundError:
            return []

    def _table(self, name: str) -> StaticTable | None:
        """The table as its newest metadata has it."""
        files = list((self._lake / self._database / name / "metadata").glob("v*.metadata.json"))
        numbers = {int(file.name[1:].partition(".")[0]): file for file in files}
        return StaticTable.from_metadata(str(numbers[max(numbers)])) if numbers else None


class JobsWriter:
    """Writes what the features are made of, whatever happens to the servers."""

    def __init__(self, uri: str, database: str, seed: int) -> None:
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri, **CLIENT_OPTIONS)
        self._load = Load(self._client[database][TRANSACTIONS], seed)
        self._stopping = threading.Event()
        self._thread = OwnedThread(self._run, name="writer of transactions")

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """End after the write under way."""
        self._stopping.set()
        assert self._thread.join(60), "the writer of transactions does not end"
        assert self._thread.error is None, f"the writer of transactions died: {self._thread.error!r}"
        self._client.close()

    def _run(self) -> None:
        while not self._stopping.wait(0.05):
            try:
                self._load.step()
            except PyMongoError:
                self._stopping.wait(0.05)


def kill_below(service: Service, choice: int, wanted: Callable[[str], bool]) -> str:
    """SIGKILL one of the processes that a job has started; gives what was killed."""
    below = [pid for pid in python_workers(service.pid) if wanted(_command_of(pid))] if service.pid else []
    if not below:
        return f"{service.name}: has none"
    victim = below[choice % len(below)]
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return f"{service.name}: gone already"
    return f"{service.name}: {victim}"


def is_worker(command: str) -> bool:
    """Whether it is a Python worker of Spark."""
    return "pyspark" in command and "daemon" in command


def is_jvm(command: str) -> bool:
    """Whether it is the driver's JVM."""
    return "java" in command.partition("\0")[0]


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _service(name: str, verb: list[str], folder: Path) -> Service:
    return Service(name, [str(Path(sys.executable).with_name("tailrace")), *verb], folder, _SETTINGS)
