"""The commands of the pages, run in their order against real servers, as a reader types them. `make newcomer`.

A command that runs until it is stopped goes on beside those that follow it, and has to end well when the page is done.
Only addresses are others than on the page, and a Spark job gets `--once`, to end by itself.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pymongo import MongoClient
from pymongo.collection import Collection

from dashboard_site import free_port
from docs.pages import ROOT, read
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.stand import Kafka, Postgres, Redis, ReplicaSet
from webhook_server import Hook, serving

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]
SECONDS = 900
STARTED = {
    "produce": "stream_opened",
    "serve": "serving change streams",
    "dashboard": "http://127.0.0.1:",
    "watch": "operationType",
}
"""Verbs that run until they are stopped, and what each says when it is there."""
NEEDS_THE_LEASE = ("recover", "snapshot", "position set", "position import")
"""What only works while nobody produces the stream; a reader stops the producer first."""


@dataclass
class Reader:
    """Someone who types the commands of a page into a shell, in one folder."""

    folder: Path
    environment: dict[str, str]
    addresses: dict[str, str]
    orders: Collection[Any]
    running: dict[str, tuple[GuardedProcess, Path]] = field(default_factory=dict)

    def type(self, line: str) -> None:
        """Run a line to its end; one that runs on is left running."""
        for shown, meant in self.addresses.items():
            line = line.replace(shown, meant)
        words = shlex.split(re.split(r"\s+#\s|\s>\s", line)[0])[1:]
        if " ".join(words).startswith(NEEDS_THE_LEASE):
            self.leave()
        if words[0] in STARTED and "--until-idle" not in words:
            self._start(words)
            return
        ended = run_guarded(
            [sys.executable, "-m", "tailrace.cli.app", *words, *self._ends(words)],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        assert ended.returncode == 0, f"{line}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}\n{self._logs()}"

    def _ends(self, words: list[str]) -> list[str]:
        is_job = (words[0] == "features" and words[1].endswith(".toml")) or words[:2] == ["warehouse", "run"]
        if not is_job:
            return []
        elsewhere = ["--checkpoint", "checkpoints/topics"] if "--topics" in words else []  # as the page says
        return ["--once", *elsewhere]

    def _start(self, words: list[str]) -> None:
        name = words[words.index("--name") + 1] if "--name" in words else "default"
        key = f"{words[0]} {name}"
        self._stop(key)
        log = self.folder / f"{key}.log"
        with log.open("w") as output:
            command = [sys.executable, "-m", "tailrace.cli.app", *words]
            process = GuardedProcess(command, cwd=self.folder, env=self.environment, stdout=output, stderr=output)
        self.running[key] = process, log
        deadline = time.monotonic() + 180
        while STARTED[words[0]] not in log.read_text() and time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()
            self.orders.delete_one({"_id": self.orders.insert_one({}).inserted_id})  # something to watch
            time.sleep(0.2)
        assert STARTED[words[0]] in log.read_text(), log.read_text()

    def _stop(self, key: str) -> None:
        process, log = self.running.pop(key, (None, None))
        if process is None or log is None:
            return
        by_ctrl_c = key.startswith("watch")  # it prints until then
        process.send_signal(signal.SIGINT if by_ctrl_c else signal.SIGTERM)
        assert process.wait(timeout=120) == (130 if by_ctrl_c else 0), log.read_text()[-4000:]

    def _logs(self) -> str:
        return "\n".join(f"--- {key}\n{log.read_text()[-1500:]}" for key, (_, log) in self.running.items())

    def leave(self) -> None:
        """Stop what runs, which has to end well."""
        for key in list(self.running):
            self._stop(key)

    def kill(self) -> None:
        """Leave nothing behind when a command failed."""
        for process, _ in self.running.values():
            process.kill()
            process.wait(timeout=60)


def commands_of(page: str) -> list[str]:
    """The lines of its code blocks that call the program, without those that a test of their own runs."""
    text = re.sub(r" \\\n\s+", " ", read(page))
    return re.findall(r"^(?: {4}|)(tailrace [^\n]*)$", text, re.MULTILINE)


@pytest.fixture
def shop(mongodb: ReplicaSet) -> Iterator[MongoClient[Any]]:
    with mongodb.client() as client:
        client.drop_database("shop")
        client.shop.orders.insert_many([{"status": "paid", "amount": 1.5 * number} for number in range(50)])
        client.shop.customers.insert_one({"name": "Ada"})
        now = datetime.now(UTC)
        client.shop.transactions.insert_many(
            [{"user_id": 42, "amount": 2.0, "merchant": "north", "placed_at": now} for _ in range(8)]
        )
        yield client
        client.drop_database("shop")


@pytest.fixture
def reader(
    shop: MongoClient[Any], mongodb: ReplicaSet, kafka: Kafka, postgres: Postgres, redis_server: Redis, tmp_path: Path
) -> Iterator[Reader]:
    servers = kafka.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    left = [name for name in admin.list_topics(timeout=60).topics if name.startswith("tailrace")]
    for deleted in admin.delete_topics(left).values() if left else ():
        deleted.result(timeout=60)
    settings = {
        "MONGODB__URI": mongodb.uri, "CAPTURE__SINK": f"kafka://{servers}",
        "CAPTURE__TOPIC_PREFIX": "tailrace", "FEATURES__KAFKA_SERVERS": servers, "WAREHOUSE__KAFKA_SERVERS": servers,
        "FEATURES__REDIS_URL": redis_server.url, "SPARK__MASTER": "local[2]", "SPARK__DRIVER_MEMORY": "1g",
    }  # fmt: skip
    with ExitStack() as open_:
        hook = open_.enter_context(serving(Hook(*[200] * 10_000)))
        addresses = {
            "mongodb://mongo1,mongo2,mongo3/?replicaSet=rs0": mongodb.uri, "broker:9092": servers,
            "127.0.0.1:9092": servers, "https://service.example/changes": hook,
            "postgresql://db/positions": postgres.dsn, "--port 27117": f"--port {free_port()}",
            "--metrics-port 9464": f"--metrics-port {free_port()}",
            "--as-of 10m": "--as-of 1s",  # the tables are not as old
        }  # fmt: skip
        shutil.copy(ROOT / "examples" / "fraud_signals" / "features.toml", tmp_path)
        environment = {**os.environ, **{f"TAILRACE_{name}": value for name, value in settings.items()}}
        someone = Reader(tmp_path, environment, addresses, shop.shop.orders)
        open_.callback(someone.kill)
        yield someone


@pytest.mark.parametrize(
    ("page", "before"),
    [
        ("howto/kafka.md", []),
        ("howto/watch.md", []),
        ("howto/resume.md", []),
        ("howto/upgrade.md", []),
        ("howto/many-watchers.md", []),
        ("howto/recover.md", ["produce shop.orders --until-idle --name orders", "produce shop.orders --until-idle"]),
        ("howto/dashboard.md", []),
        ("capture.md", []),
    ],
)
def test_the_commands_of_a_page(page: str, before: list[str], reader: Reader) -> None:
    if page == "howto/resume.md":  # its producer names the store, the other commands take it from the settings
        reader.environment["TAILRACE_CAPTURE__POSITION_STORE"] = reader.addresses["postgresql://db/positions"]
    lines = [*(f"tailrace {line}" for line in before), *commands_of(page)]
    assert lines
    for line in lines:
        reader.type(line)
    reader.leave()


def test_tables(reader: Reader, kafka: Kafka) -> None:
    """One record of the topic is none, so that there is a dead letter to look at."""
    for line in commands_of("howto/tables.md"):
        if "--topics '/" in line:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
            producer.produce("tailrace.shop.orders", b"no record")
            assert producer.flush(60) == 0
        reader.type(line)
    reader.leave()


def test_features(reader: Reader) -> None:
    """The training data come from the history that a job of the tables keeps."""
    (reader.folder / "labels.csv").write_text(f"user_id,at,label\n42,{datetime.now(UTC).isoformat()},1\n")
    for line in ["tailrace warehouse run shop.transactions --backfill", *commands_of("howto/features.md")]:
        reader.type(line)
    reader.leave()


def test_the_first_steps(reader: Reader) -> None:
    """Of the home page and of the page about the installation; both write the settings file."""
    for page in ("index.md", "install.md"):
        (reader.folder / "tailrace.toml").unlink(missing_ok=True)
        for line in commands_of(page):
            if "up --demo" in line:
                break  # tests/cli/test_up.py runs this, and what follows
            reader.type(line.replace("tailrace init ", "tailrace init --yes "))
        reader.leave()
