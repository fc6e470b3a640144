"""Both jobs on a real standalone cluster, submitted as an operator would: a master and two workers as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyspark
import pytest
import redis
from confluent_kafka import Consumer, KafkaError, Producer

from kafka_security import KafkaSecurity
from tailrace.cli.app import run
from tailrace.cli.spark_session import fetched_connectors
from tailrace.features import read
from tailrace.owned import run_guarded
from tailrace.spark.connectors import CONNECTORS, DELTA
from tailrace.spark.session import missing_jars
from tailrace.stand import Kafka
from tailrace.stand.java import java_home
from tailrace.stand.node import ThrowAwayCA
from tailrace.stand.ports import reserve_port
from tailrace.stand.process import ServerProcess
from tailrace.warehouse import read_tables

REPOSITORY = Path(__file__).parents[2]
SUBMIT = REPOSITORY / "deploy" / "spark" / "submit.sh"
SPARK_BIN = Path(pyspark.__file__).parent / "bin"
SECONDS = 600
USERS = 5
PAYMENTS = 200

pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * SECONDS)]


def environment() -> dict[str, str]:
    small = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC"}
    return {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1", **small}


@dataclass(frozen=True)
class Cluster:
    """A master and its workers."""

    master: str
    page: str
    folder: Path

    def state(self) -> dict[str, Any]:
        """What the master's page says."""
        with urllib.request.urlopen(f"{self.page}/json/", timeout=120) as answer:
            return json.load(answer)

    def workers(self) -> int:
        try:
            return int(self.state()["aliveworkers"])
        except (OSError, ValueError):  # nobody answers yet, or the page is not there yet
            return 0

    def submit(self, job: str, *arguments: str, settings: Path, flags: str = "") -> subprocess.CompletedProcess[str]:
        """Submit a job and wait for its end."""
        jars = ",".join(map(str, missing_jars(fetched_connectors())))
        small = "--conf spark.driver.memory=512m --conf spark.executor.memory=512m --conf spark.cores.max=2"
        variables = {
            **os.environ,
            **environment(),
            "MASTER": self.master,
            "JARS": jars,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SUBMIT": str(SPARK_BIN / "spark-submit"),
            "SUBMIT_FLAGS": f"{small} --conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1 {flags}",
            "TAILRACE_CONFIG": str(settings),
            "TAILRACE_SPARK__APP_NAME": job,
        }
        return run_guarded(
            [str(SUBMIT), job, *arguments],
            env=variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            cwd=settings.parent,
        )

    def hosts_of(self, job: str) -> set[str]:
        """The workers that ran executors of a job that is done."""
        done = [one["id"] for one in self.state()["completedapps"] if one["name"] == job]
        return {folder.parent.name for one in done for folder in self.folder.glob(f"worker*/{one}")}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("spark")
    with ExitStack() as opened:
        ports = [reserve_port() for _ in range(6)]
        for port in ports:
            opened.callback(port.release)
        rpc, page, *rest = [port.number for port in ports]
        made = Cluster(f"spark://127.0.0.1:{rpc}", f"http://127.0.0.1:{page}", folder)

        def start(name: str, *arguments: str, ready: Callable[[], bool]) -> None:
            command = [str(SPARK_BIN / "spark-class"), *arguments]
            process = ServerProcess(name, command, log=folder / f"{name}.log", environment=environment())
            opened.callback(process.kill)
            process.start(ready, timeout=SECONDS)

        where = ["--host", "127.0.0.1", "--port", str(rpc), "--webui-port", str(page)]
        start("master", "org.apache.spark.deploy.master.Master", *where, ready=lambda: _answers(made))
        for number in (1, 2):
            port, its_page = rest[2 * number - 2 : 2 * number]
            where = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(its_page)]
            size = ["--cores", "1", "--memory", "512m", "--work-dir", str(folder / f"worker{number}")]
            worker = ["org.apache.spark.deploy.worker.Worker", *where, *size, made.master]
            start(f"worker{number}", *worker, ready=lambda number=number: made.workers() == number)
        yield made


def _answers(cluster: Cluster) -> bool:
    try:
        return cluster.state()["status"] == "ALIVE"
    except (OSError, ValueError):  # nobody answers yet, or the page is not there yet
        return False


@pytest.fixture
def captured(mongodb, database, kafka, redis_server, tmp_path) -> Path:
    """Settings whose topics hold the changes of a collection: payments, updates and refunds."""
    database.transactions.insert_many(
        {"user_id": number % USERS, "amount": number / 4, "merchant": f"m{number % 7}", "placed_at": datetime.now(UTC)}
        for number in range(PAYMENTS)
    )
    settings = tmp_path / "tailrace.toml"
    settings.write_text(
        f"""
        [mongodb]
        uri = "{mongodb.uri}"
        [capture]
        name = "{database.name}"
        namespaces = ["{database.name}"]
        sink = "kafka://{kafka.bootstrap_servers}"
        format = "bson"
        position_store = "file:{tmp_path / "positions"}"
        [features]
        redis_url = "{redis_server.url}"
        kafka_servers = "{kafka.bootstrap_servers}"
        [warehouse]
        folder = "{tmp_path / "warehouse"}"
        kafka_servers = "{kafka.bootstrap_servers}"
        [spark]
        checkpoints = "{tmp_path / "checkpoints"}"
        """
    )
    produce = ["--config", str(settings), "produce", "--until-idle"]
    assert run(produce) == 0
    database.transactions.update_many({"user_id": 1}, {"$set": {"amount": 1.0}})
    database.transactions.delete_many({"user_id": 2, "amount": {"$lt": 10}})
    assert run(produce) == 0
    return settings


def test_the_features_job_runs_on_the_cluster(cluster, captured, database, redis_server, tmp_path):
    """make spark-cluster"""
    text = (REPOSITORY / "examples" / "fraud_signals" / "features.toml").read_text()
    definition = tmp_path / "features.toml"
    definition.write_text(text.replace("shop.transactions", f"{database.name}.transactions"))
    topic = f"tailrace.{database.name}.transactions"
    ended = cluster.submit("features", str(definition), "--topics", topic, "--once", settings=captured)
    assert ended.returncode == 0, ended.stderr[-5000:]
    with redis.Redis.from_url(redis_server.url) as client:
        for user in range(USERS):
            amounts = [one["amount"] for one in database.transactions.find({"user_id": user})]
            signals = read(client, user, "fraud")
            assert signals["transactions_1h"] == len(amounts) > 0
            assert signals["amount_1h"] == pytest.approx(sum(amounts))
    assert cluster.hosts_of("features") == {"worker1", "worker2"}


def test_the_warehouse_job_runs_on_the_cluster(cluster, captured, database, tmp_path):
    topic = f"tailrace.{database.name}.transactions"
    ended = cluster.submit("warehouse", "--topics", topic, "--once", settings=captured)
    assert ended.returncode == 0, ended.stderr[-5000:]
    tables = {table.kind.value: table for table in read_tables(tmp_path / "warehouse")}
    assert tables["mirror"].rows == database.transactions.count_documents({}) < PAYMENTS
    changed = PAYMENTS // USERS + PAYMENTS - tables["mirror"].rows
    assert tables["history"].rows == PAYMENTS + changed
    assert cluster.hosts_of("warehouse") == {"worker1", "worker2"}


def test_executors_read_a_secured_broker_and_nothing_shows_its_password(cluster, captured, kafka, database, tmp_path):
    security = KafkaSecurity(ThrowAwayCA.make(tmp_path), "alice", "MarkedPassword")
    topic, events = f"tailrace.{database.name}.transactions", tmp_path / "events"
    events.mkdir()
    with Kafka.start(security=security, folder=tmp_path / "secured-kafka") as broker:
        records = copied(kafka.bootstrap_servers, broker.bootstrap_servers, topic)
        assert records > PAYMENTS
        url = f"kafka://alice:MarkedPassword@{broker.secured_servers}?ssl.ca.location={security.certificates.ca_file}"
        captured.write_text(
            captured.read_text().replace(f'servers = "{kafka.bootstrap_servers}"', f'servers = "{url}"')
        )
        log = {"enabled": "true", "compress": "false", "dir": f"file://{events}"}
        flags = " ".join(f"--conf spark.eventLog.{name}={value}" for name, value in log.items())
        ended = cluster.submit("warehouse", "--topics", topic, "--once", settings=captured, flags=flags)
    assert ended.returncode == 0, ended.stderr[-5000:]
    tables = {table.kind.value: table for table in read_tables(tmp_path / "warehouse")}
    assert tables["history"].rows == records
    files = [*events.rglob("*"), *cluster.folder.rglob("*"), *(tmp_path / "checkpoints").rglob("*")]
    shown = [file for file in files if file.is_file() and b"MarkedPassword" in file.read_bytes()]
    assert shown == []
    assert "MarkedPassword" not in ended.stdout + ended.stderr
    assert any(b"SparkListenerSQLExecutionStart" in file.read_bytes() for file in events.rglob("*") if file.is_file())


def copied(source: str, target: str, topic: str) -> int:
    """Copy the records of a topic to another broker; gives how many there are."""
    consumer = Consumer({"bootstrap.servers": source, "group.id": "copy", "auto.offset.reset": "earliest",
                         "enable.partition.eof": True})  # fmt: skip
    producer = Producer({"bootstrap.servers": target})
    partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
    consumer.subscribe([topic])
    ended, count = set(), 0
    while len(ended) < len(partitions):
        record = consumer.poll(60)
        assert record is not None
        if record.error():
            assert record.error().code() == KafkaError._PARTITION_EOF, record.error()
            ended.add(record.partition())
            continue
        producer.produce(topic, record.value(), record.key(), headers=record.headers())
        count += 1
    consumer.close()
    assert producer.flush(60) == 0
    return count


def test_wrong_arguments_end_the_submission_with_the_verbs_exit_code(cluster, captured):
    ended = cluster.submit("features", "none.toml", settings=captured)
    assert ended.returncode == 64, ended.stderr[-5000:]
    assert "cannot read none.toml" in ended.stdout


def test_the_script_names_the_connectors_that_the_jobs_need():
    assert f"packages={','.join(CONNECTORS)}\n" in SUBMIT.read_text()
    assert f"packages=$packages,{','.join(DELTA)}\n" in SUBMIT.read_text()
