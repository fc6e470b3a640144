"""What works through Spark Connect, with a real server: the source, the features job in tasks, and reads of tables."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
import redis
from bson.timestamp import Timestamp

from feature_load import Load, equal_now, transactions_toml
from tailrace.cli.spark_session import fetched_connectors
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.settings import WarehouseSettings
from tailrace.spark.session import ICEBERG_EXTENSIONS, missing_jars
from tailrace.stand.cache import made_once
from tailrace.stand.java import java_home
from tailrace.stand.ports import reserve_port
from tailrace.warehouse.job import WarehouseJob
from tailrace.warehouse.tables.format import Commit
from warehouse_load import now

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
CLIENT = Path(__file__).with_name("connect_client.py")
LIBRARIES = ("grpcio==1.85.1", "grpcio-status==1.85.1")
SECONDS_TO_START = 300.0


def environment() -> dict[str, str]:
    """What a client and the server's own Python processes need: `pyspark[connect]`, and this repository's helpers."""

    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        assert run_guarded([*pip, "--target", str(folder), *LIBRARIES], timeout=900).returncode == 0

    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    grpc, before = made_once(f"grpc-1.85.1-{tag}", install), os.environ.get("PYTHONPATH")
    path = ":".join([*([before] if before else []), str(grpc), str(CLIENT.parents[1])])
    return {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java_home())}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Connect server with Iceberg, as an operator starts one."""
    folder = tmp_path_factory.mktemp("connect")
    port = reserve_port()
    config = {
        "spark.connect.grpc.binding.port": str(port.number),
        "spark.sql.extensions": ICEBERG_EXTENSIONS,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "own"),
    }
    command = [str(SUBMIT), "--master", "local[2,4]", "--driver-memory", "1g"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += ["--jars", ",".join(map(str, missing_jars(fetched_connectors())))]
    for key, value in config.items():
        command += ["--conf", f"{key}={value}"]
    command.append("spark-internal")
    with (
        (folder / "log").open("wb") as log,
        GuardedProcess[bytes](command, stdout=log, stderr=log, env=environment(), cwd=folder) as running,
    ):
        deadline = time.monotonic() + SECONDS_TO_START
        while not answers(port.number):
            assert running.poll() is None, (folder / "log").read_text()[-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield f"sc://127.0.0.1:{port.number}"
        running.kill()
    port.release()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def asked(server: str, step: str, **given: Any) -> Any:
    """Let a client do one step, and give what it printed."""
    command = [sys.executable, str(CLIENT), server, step, json.dumps(given)]
    done = run_guarded(command, env=environment(), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def text_of(time_: Timestamp) -> str:
    return f"{time_.time}:{time_.inc}"


def test_the_source(server: str, mongodb: Any, database: Any, tmp_path: Path) -> None:
    start = now(database.client)
    database.orders.insert_many([{"_id": number, "amount": number + 0.5} for number in range(50)])
    database.orders.update_many({"_id": {"$lt": 10}}, {"$set": {"amount": 1.0}})
    database.orders.delete_many({"_id": {"$gte": 40}})
    place = {"uri": mongodb.uri, "namespace": f"{database.name}.orders"}
    found = asked(server, "source", **place, start=text_of(start), checkpoint=str(tmp_path / "c"))
    (whole,) = database.orders.aggregate([{"$group": {"_id": None, "sum": {"$sum": "$amount"}}}])
    events = [["delete", 10], ["insert", 50], ["update", 10]]
    assert found == {"documents": 40, "history": events, "sum": whole["sum"], "stream": events}
    assert asked(server, "refused", **place) == "settings-invalid"


def test_the_features_job_in_tasks(server: str, mongodb: Any, database: Any, redis_server: Any, tmp_path: Path) -> None:
    load = Load(database.tx, 5)
    load.run(60)
    given = {"uri": mongodb.uri, "namespace": f"{database.name}.tx", "name": "connect", "redis": redis_server.url}
    start = asked(server, "features", **given)
    with redis.Redis.from_url(redis_server.url) as client:
        assert equal_now(client, database.tx, "connect")
        load.run(60)
        asked(server, "features", **given, start=start, checkpoint=str(tmp_path / "c"))
        assert equal_now(client, database.tx, "connect")


def test_verbs_with_a_connect_server_as_master(
    server: str, mongodb: Any, database: Any, redis_server: Any, tmp_path: Path
) -> None:
    load = Load(database.tx, 6)
    load.run(40)
    definition = tmp_path / "features.toml"
    definition.write_text(transactions_toml(f"{database.name}.tx", "verbs"))
    common = {**environment(), "TAILRACE_SPARK__MASTER": server}
    words = ["features", str(definition), "--uri", mongodb.uri, "--redis", redis_server.url, "--once"]
    words += ["--checkpoint", str(tmp_path / "c")]

    def verb(*words: str) -> Any:
        command = [sys.executable, "-m", "tailrace.cli.app", *words]
        return run_guarded(command, env=common, cwd=tmp_path, capture_output=True, text=True, timeout=900)

    with redis.Redis.from_url(redis_server.url) as client:
        for flags in (["--backfill"], []):
            done = verb(*words, *flags)
            assert done.returncode == 0, done.stderr[-4000:]
            assert equal_now(client, database.tx, "verbs")
            load.run(40)
    done = verb(
        "warehouse", "run", f"{database.name}.tx", "--uri", mongodb.uri, "--once", "--folder", str(tmp_path / "l")
    )
    assert "error[settings-invalid]: tables cannot be written through Spark Connect" in done.stderr


def test_tables_are_read_and_writing_is_refused(server: str, spark: Any, tmp_path: Path) -> None:
    from warehouse.test_job import event, frame

    settings = WarehouseSettings(folder=str(tmp_path / "lake"), catalog=f"c{tmp_path.name.replace('-', '_')}")
    made = [
        event("shop.orders", "insert", number, 1 + number, fullDocument={"_id": number, "n": number})
        for number in range(20)
    ]
    WarehouseJob(settings).write(frame(spark, made), Commit("q", 0))
    found = asked(server, "tables", folder=str(tmp_path / "lake"), table="shop.orders")
    assert found == {"rows": 20, "sum": sum(range(20)), "events": 20, "code": "settings-invalid"}
