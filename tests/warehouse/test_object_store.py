"""Tables and checkpoints in a bucket: jobs by Spark's own settings, readers by the same (`make object-store`).

The server is moto's, which checks signatures and keeps its objects in memory; it is not AWS.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import bson
import pytest
import redis

from fault_proxies import FaultProxy
from feature_load import Load as Transactions
from feature_load import equal_now, transactions_toml
from s3_server import HADOOP_AWS, S3, jars
from tailrace.dashboard.sources.tables import TablesSource
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.settings import Settings
from tailrace.warehouse.query import ask
from tailrace.warehouse.tables.catalogs import open_tables
from waiting import wait_until
from warehouse_load import Load, Topic, documents, now

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]
SECONDS = 900.0
VERBS = """
import json, sys
from tailrace.cli.app import run

for verb in json.loads(sys.argv[1]):
    print("::", *verb, flush=True)
    code = run(verb)
    assert code == 0, (verb, code)
"""
"""Verbs in one process, because each would start a JVM of its own."""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3.start(["lake"], folder=tmp_path_factory.mktemp("s3")) as server:
        yield server


class Site:
    """A folder with settings, in which verbs run, and a folder of the bucket for tables and checkpoints."""

    def __init__(self, folder: Path, config: Mapping[str, str], *, bucket: str = "lake", has_jars: bool = True) -> None:
        self.folder = folder
        self.name = f"site-{uuid.uuid4().hex[:8]}"
        self.root = f"s3a://{bucket}/{self.name}"
        chosen = {**config, **({"spark.jars": ",".join(map(str, jars()))} if has_jars else {})}
        text = [
            "[spark]",
            'master = "local[2,4]"',
            f'checkpoints = "{self.root}/checkpoints"',
            "[spark.config]",
            *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in chosen.items()),
            "[warehouse]",
            f'folder = "{self.root}/tables"',
            "[features]",
            f'dead_letters = "{self.root}/dead-letters"',
        ]
        (folder / "tailrace.toml").write_text("\n".join(text))

    @property
    def settings(self) -> Settings:
        return Settings.load(self.folder / "tailrace.toml", {})

    def run(self, *arguments: str, program: Sequence[str] = ("-m", "tailrace.cli.app")) -> CompletedProcess[str]:
        return run_guarded(
            [sys.executable, *program, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=SECONDS
        )

    def verbs(self, *verbs: Sequence[str]) -> str:
        """Run verbs that have to succeed; gives all that they printed."""
        done = self.run(json.dumps(verbs), program=("-c", VERBS))
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        return done.stdout + done.stderr

    @contextmanager
    def running(self, *arguments: str, **variables: str) -> Iterator[GuardedProcess[bytes]]:
        """A job in a process of its own, killed at the end."""
        command = [sys.executable, "-m", "tailrace.cli.app", *arguments]
        with (
            (self.folder / "job.log").open("ab") as log,
            GuardedProcess[bytes](
                command, cwd=self.folder, stdout=log, stderr=log, env={**os.environ, **variables}
            ) as job,
        ):
            yield job
            job.kill()
            job.wait(SECONDS)

    def keys(self, s3: S3) -> list[str]:
        """The names of its objects."""
        return [key for key in s3.keys("lake") if key.startswith(f"{self.name}/")]

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

    def tokens(self, collection: Any) -> list[str]:
        """The tokens of all events in a history."""
        name = f'"{collection.database.name}"."{collection.name}_history"'
        return [row[0] for row in self.rows(f"SELECT token FROM {name} WHERE op <> 'read'")]


def test_every_verb_in_a_bucket(s3: S3, mongodb: Any, kafka: Any, database: Any, tmp_path: Path) -> None:
    """A load, a restart from the checkpoint, batches of the driver, care for the tables, a rebuild, and the answers."""
    orders, name, start = database.orders, database.name, now(database.client)
    orders.insert_many([{"_id": number, "n": number % 7} for number in range(300)])
    (tmp_path / "spark-events").mkdir()
    events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{tmp_path}/spark-events"}
    site = Site(tmp_path, {**s3.spark_config(), **events})
    namespace, topic = f"{name}.orders", Topic(kafka, f"bucket-{name}")
    load = ["warehouse", "run", namespace, "--uri", mongodb.uri, "--once", "--backfill"]
    said = site.verbs(load)
    assert site.rows(f"SELECT count(*), sum(n) FROM {namespace}") == [(300, sum(number % 7 for number in range(300)))]

    source = ["--topics", topic.name, "--servers", kafka.bootstrap_servers, "--format", "bson"]
    stream = ["warehouse", "run", namespace, *source, "--once", "--checkpoint", f"{site.root}/checkpoints/topics"]
    orders.update_many({"_id": {"$lt": 50}}, {"$set": {"n": 100}})
    orders.delete_one({"_id": 299})
    count = topic.fill(database, start)
    by_spark = ["sql", "--engine", "spark", f"SELECT count(*) AS found FROM {namespace}"]
    said += site.verbs(load, stream, ["warehouse", "compact"], by_spark)
    assert "going on from it, without a backfill" in said
    assert site.differences(orders) == []

    start = now(database.client)
    orders.update_many({"_id": {"$lt": 20}}, {"$inc": {"n": 1}})
    count += topic.fill(database, start)
    said += site.verbs(stream)
    assert site.differences(orders) == []
    assert any(by_driver(site, name, "orders_history")), "a small batch is the driver's"
    expire = ["warehouse", "expire", "--orphans", "--keep-hours", "0"]
    replay = ["warehouse", "replay-dead-letters", "--format", "bson"]
    said += site.verbs(expire, ["warehouse", "rebuild", namespace, *source, "--force"], replay)
    assert site.differences(orders) == []
    tokens = site.tokens(orders)
    assert len(tokens) == len(set(tokens)) == count

    settings = site.settings
    page = TablesSource(settings.warehouse, settings.spark.config)
    assert {state.name for state in page.poll()} >= {namespace, f"{namespace}_history"}
    said += site.run("sql", f"SELECT count(*) FROM {namespace}").stdout
    assert not any(s3.secret in text for text in (said, *texts(tmp_path / "spark-events")))
    assert not any(s3.secret.encode() in content for content in s3.contents("lake").values())


def by_driver(site: Site, database: str, table: str) -> list[bool]:
    """Whether each snapshot was written by the driver itself; Spark's have the id of its application."""
    settings = site.settings
    data: Any = open_tables(settings.warehouse, settings.spark.config).load(database, table)
    return ["spark.app.id" not in snapshot.summary.additional_properties for snapshot in data._table.snapshots()]


def texts(folder: Path) -> list[str]:
    found = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    assert found
    return found


def test_a_stream_whose_driver_is_killed(
    s3: S3, kafka: Any, database: Any, fault_proxy: Callable[[int], FaultProxy], tmp_path: Path
) -> None:
    """Killed when it has written files of a batch, when it has committed one, and when it writes its checkpoint.

    Then the server is away for a while, and the job goes on.
    """
    orders, name, proxy = database.orders, database.name, fault_proxy(s3.port)
    config = s3.spark_config() | {"spark.hadoop.fs.s3a.endpoint": f"http://{proxy.address}"}
    topic, site, load, count = Topic(kafka, f"kills-{name}"), Site(tmp_path, config), Load(orders, 11), 0
    source = ["--topics", topic.name, "--servers", kafka.bootstrap_servers, "--format", "bson"]
    stream = ["warehouse", "run", f"{name}.orders", *source]
    fast = {"TAILRACE_WAREHOUSE__EVERY_SECONDS": "0", "TAILRACE_WAREHOUSE__MAINTAIN_BATCHES": "4"}

    def more(steps: int = 15) -> int:
        start = now(database.client)
        load.run(steps)
        return topic.fill(database, start)

    def wait_for(part: str, before: set[str]) -> None:
        wait_until(lambda: any(part in key for key in set(site.keys(s3)) - before), part, seconds=SECONDS)

    count += more(60)
    site.verbs([*stream, "--once"])
    for part in ("/orders_history/data/", "/orders/data/", "/orders/metadata/", "/checkpoints/"):
        with site.running(*stream, **fast) as job:
            for _ in range(2):  # the first one makes what the driver keeps, the other one is as usual
                before = set(site.keys(s3))
                count += more()
                wait_for(part, before)
            assert job.poll() is None, (tmp_path / "job.log").read_text()[-3000:]
    with site.running(*stream, **fast) as job:
        for is_away in (False, True):
            before = set(site.keys(s3))
            if is_away:
                proxy.refuse()
                proxy.cut()
            count += more()
            time.sleep(5)
            proxy.heal()
            wait_for("/commits/", before)
        assert job.poll() is None, (tmp_path / "job.log").read_text()[-3000:]
    site.verbs([*stream, "--once"])
    assert site.differences(orders) == []
    tokens = site.tokens(orders)
    assert (len(tokens), len(set(tokens))) == (count, count)
    assert s3.secret not in (tmp_path / "job.log").read_text()


def test_a_load_that_is_killed(s3: S3, mongodb: Any, database: Any, tmp_path: Path) -> None:
    """A full load beside writes, killed when the mirror has files and when the stream is about to begin."""
    orders, name, site = database.orders, database.name, Site(tmp_path, s3.spark_config())
    orders.insert_many([{"_id": f"d{number}", "n": number, "text": "x" * 100} for number in range(3_000)])
    load = ["warehouse", "run", f"{name}.orders", "--uri", mongodb.uri, "--once", "--backfill"]
    moments: list[Callable[[str], bool]] = [
        lambda key: f"{name}/orders/data/" in key,
        lambda key: key.endswith("/tailrace-start.json"),
    ]
    stopped = threading.Event()

    def write() -> None:
        changes = Load(orders, 11, keys=100)
        while not stopped.is_set():
            changes.step()
            orders.delete_one({"_id": f"d{changes._chance.randrange(3_000)}"})
            time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for moment in moments:
            with site.running(*load) as job:
                wait_until(
                    lambda: any(moment(key) for key in site.keys(s3)) or job.poll() is not None,  # noqa: B023
                    seconds=SECONDS,
                )
    finally:
        stopped.set()
        writer.join()
    site.verbs(load)
    assert site.differences(orders) == []
    tokens = site.tokens(orders)
    assert len(tokens) == len(set(tokens))


def test_features_keep_checkpoint_and_dead_letters_in_a_bucket(
    s3: S3, kafka: Any, database: Any, redis_server: Any, tmp_path: Path
) -> None:
    """With the jars by their name, as the page says, which are used beside those of the connectors."""
    config = {**s3.spark_config(), "spark.jars.packages": HADOOP_AWS}
    site, topic = Site(tmp_path, config, has_jars=False), Topic(kafka, f"features-{database.name}")
    start = now(database.client)
    (tmp_path / "features.toml").write_text(transactions_toml(f"{database.name}.tx", "bucket"))
    source = ["--topics", topic.name, "--servers", kafka.bootstrap_servers, "--format", "bson"]
    job = ["features", "run", "features.toml", *source, "--redis", redis_server.url, "--once"]
    load = Transactions(database.tx, 23)
    load.run(60)
    topic.fill(database, start)
    topic.write_bad(b"no event")
    site.verbs(job)
    start = now(database.client)
    load.run(30)
    topic.fill(database, start)
    site.verbs(job)
    with redis.Redis.from_url(redis_server.url) as client:
        assert equal_now(client, database.tx, "bucket")
    own = site.keys(s3)
    assert any("/checkpoints/features-bucket/commits/1" in key for key in own)
    assert any("/dead-letters/" in key and key.endswith(".parquet") for key in own)


WRONG = {
    "a wrong secret": ({"secret.key": "Hunter2Hunter2"}, "not-authorized", "refuses this key"),
    "an unknown key": ({"access.key": "AKIANOBODY"}, "not-authorized", "refuses this key"),
    "no credentials": ({"access.key": "", "secret.key": ""}, "not-authorized", "no credentials"),
    "a server that is away": ({"endpoint": "http://127.0.0.1:9"}, "server-unreachable", "does not answer"),
}


@pytest.mark.parametrize("what", [*WRONG, "no bucket", "no jars", "the wrong scheme"])
def test_what_is_wrong_is_told_before_anything_is_written(
    s3: S3, mongodb: Any, database: Any, tmp_path: Path, what: str
) -> None:
    changed, code, words = WRONG.get(what, ({}, "", ""))
    config = {**s3.spark_config(), **{f"spark.hadoop.fs.s3a.{name}": value for name, value in changed.items()}}
    config = {name: value for name, value in config.items() if value}
    site = Site(tmp_path, config, bucket="nowhere" if what == "no bucket" else "lake", has_jars=what != "no jars")
    if what == "no bucket":
        code, words = "file-unusable", "there is no such bucket"
    elif what == "no jars":
        code, words = "settings-invalid", "org.apache.hadoop:hadoop-aws:"
    elif what == "the wrong scheme":
        code, words = "settings-invalid", "Write s3a://"
        text = (tmp_path / "tailrace.toml").read_text()
        (tmp_path / "tailrace.toml").write_text(text.replace("s3a://lake", "s3://lake"))
    database.orders.insert_one({"_id": 1})
    before = s3.keys("lake")
    done = site.run("warehouse", "run", f"{database.name}.orders", "--uri", mongodb.uri, "--once", "--backfill")
    said = done.stdout + done.stderr
    assert done.returncode in (64, 69, 78), said[-3000:]
    assert f"error[{code}]" in said, said[-3000:]
    assert words in said
    assert "Traceback" not in said
    assert not any(secret in said for secret in (s3.secret, "Hunter2"))
    assert s3.keys("lake") == before
