"""Whatever is killed while the features job runs, Redis ends up saying what MongoDB says."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from pymongo.errors import AutoReconnect

from feature_load import Load, differences, equal_now, transactions, transactions_toml
from spark_queries import SECONDS, python_workers, wait_until
from tailrace.features.job import FeatureJob
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.spark import supervise
from tailrace.stand import Redis

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]
KILLS = 20


class Writer(threading.Thread):
    """Writes until it is told to stop; a primary that is away is waited for."""

    def __init__(self, load: Load) -> None:
        super().__init__(daemon=True)
        self._load = load
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.wait(0.02):
            try:
                self._load.step()
            except AutoReconnect:
                continue


@pytest.mark.long
def test_killed_workers_planners_mongodb_and_redis_leave_no_trace(spark, start_mongodb, start_server, tmp_path):
    mongodb, server = start_mongodb(), start_server(Redis)
    chance = random.Random(11)
    jvm = int(spark._jvm.ProcessHandle.current().pid())
    with mongodb.client(retryWrites=True) as client, redis.Redis.from_url(server.url) as features:
        collection = client["shop"].tx
        job = FeatureJob(transactions("shop.tx", "kills"), server.url)
        start = job.backfill(spark, mongodb.uri)
        done = threading.Event()
        failures: list[BaseException] = []
        queries: list[Any] = []

        def run() -> None:
            events = job.events(spark, mongodb.uri, {"startAtOperationTime": start})

            def start_query() -> Any:
                queries.append(job.start(events, str(tmp_path / "c")))
                return queries[-1]

            try:
                supervise(start_query, should_stop=done.is_set)
            except BaseException as error:
                failures.append(error)

        runner, writer = threading.Thread(target=run, daemon=True), Writer(Load(collection, 7))
        runner.start()
        writer.start()
        wait_until(lambda: bool(features.exists("kills:progress")))
        for number in range(KILLS):
            strike(("worker", "worker", "mongodb", "redis")[number % 4], jvm, mongodb, server, chance)
            time.sleep(chance.uniform(0.1, 0.6))
            assert not failures
        writer.enough.set()
        writer.join(SECONDS)
        try:
            wait_until(lambda: bool(failures) or equal_now(features, collection, "kills"))
        except AssertionError as late:
            late.add_note(f"{len(queries)} queries, the last: {queries[-1].status}, {queries[-1].lastProgress}")
            late.add_note(f"Redis: {features.hgetall('kills:progress')}, {differences(features, collection, 'kills')}")
            if shutil.which("jstack"):
                stacks = run_guarded(["jstack", str(jvm)], capture_output=True, text=True, timeout=SECONDS)
                late.add_note(stacks.stdout)
            raise
        done.set()
        runner.join(SECONDS)
        assert not failures
        assert not runner.is_alive()


def strike(victim: str, jvm: int, mongodb: Any, server: Redis, chance: random.Random) -> None:
    if victim == "worker":
        workers = python_workers(jvm)
        if workers:
            try:
                os.kill(chance.choice(workers), signal.SIGKILL)
            except ProcessLookupError:
                pass
    elif victim == "mongodb":
        node = mongodb.nodes[0]
        node.kill()
        node.restart()
    else:
        server.kill()
        server.restart()


def command(definition: Path, mongodb: Any, server: Redis, checkpoint: Path, *flags: str) -> list[str]:
    where = ["--uri", mongodb.uri, "--redis", server.url, "--checkpoint", str(checkpoint)]
    return [sys.executable, "-m", "tailrace.cli.app", "features", str(definition), *where, *flags]


@pytest.mark.long
def test_a_killed_driver_goes_on_where_it_was(mongodb, database, redis_server, tmp_path):
    definition = tmp_path / "features.toml"
    definition.write_text(transactions_toml(f"{database.name}.tx", "driver"))
    load = Load(database.tx, 8)
    load.run(40)
    first = GuardedProcess(
        command(definition, mongodb, redis_server, tmp_path / "c", "--backfill"), stderr=subprocess.DEVNULL
    )
    try:
        with redis.Redis.from_url(redis_server.url) as features:
            begun = tmp_path / "c" / "tailrace-start.json"  # written behind the backfill
            wait_until(lambda: begun.exists() or first.poll() is not None)
            assert first.poll() is None
            load.run(60)
            first.kill()
            first.wait(SECONDS)
            load.run(40)
            again = command(definition, mongodb, redis_server, tmp_path / "c", "--backfill", "--once")
            ended = run_guarded(again, capture_output=True, text=True, timeout=SECONDS)
            assert ended.returncode == 0, ended.stderr
            assert "without a backfill" in ended.stderr
            assert equal_now(features, database.tx, "driver")
    finally:
        first.kill()
