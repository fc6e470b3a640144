"""The session: its settings, its connectors, and that its JVM ends with the process that started it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyspark
import pytest

from tailrace.errors import MissingExtra
from tailrace.owned import run_guarded
from tailrace.settings import SparkSettings
from tailrace.spark.session import (
    DELTA_CATALOG,
    DELTA_EXTENSIONS,
    ICEBERG_EXTENSIONS,
    is_connect,
    missing_jars,
    open_session,
    session_config,
)
from waiting import SECONDS

pytestmark = pytest.mark.xdist_group("spark")


def test_what_the_user_set_wins():
    settings = SparkSettings(config={"spark.sql.shuffle.partitions": "9"}, driver_memory="2g")
    config = session_config(settings, [Path("x.jar")], is_submitted=False)
    assert config["spark.sql.shuffle.partitions"] == "9"
    assert config["spark.driver.memory"] == "2g"
    assert config["spark.jars"] == "x.jar"


def test_jars_of_spark_s_own_property_are_used_beside_the_connectors():
    config = {"spark.jars": "own.jar, s3a://b/c.jar", "spark.jars.packages": "org.postgresql:postgresql:42.7.7"}
    chosen = session_config(SparkSettings(config=config), [Path("x.jar")], is_submitted=False)
    assert chosen["spark.jars"] == "own.jar,s3a://b/c.jar,x.jar"
    assert chosen["spark.jars.packages"] == config["spark.jars.packages"]


def test_a_submission_keeps_its_own_master_memory_and_jars():
    config = session_config(SparkSettings(), [Path("x.jar")], is_submitted=True)
    assert not {"spark.master", "spark.driver.memory", "spark.jars"} & config.keys()


def test_a_server_of_connect_needs_the_clients_own_libraries(monkeypatch):
    settings = SparkSettings(master="sc://127.0.0.1:1")
    assert (is_connect(settings), is_connect(SparkSettings())) == (True, False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MissingExtra, match="grpc") as refused, open_session(settings):
        pass
    assert "pyspark[connect]" in refused.value.hint
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not is_connect(settings), "a submission has its own master"


@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_session_for_delta_tables_knows_both_formats(is_submitted):
    config = session_config(SparkSettings(), [], is_submitted=is_submitted, table_format="delta")
    assert config["spark.sql.extensions"] == f"{ICEBERG_EXTENSIONS},{DELTA_EXTENSIONS}"
    assert config["spark.sql.catalog.spark_catalog"] == DELTA_CATALOG
    assert "spark.sql.catalog.spark_catalog" not in session_config(SparkSettings(), [], is_submitted=is_submitted)


def test_jars_that_pyspark_has_are_not_given_twice():
    (theirs,) = (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")
    theirs = Path("jars", theirs.name)
    assert missing_jars([theirs, Path("jars/iceberg.jar")]) == [Path("jars/iceberg.jar")]


def test_connectors_are_there_and_times_are_utc(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    loader = spark._jvm.Thread.currentThread().getContextClassLoader()
    for name in ("org.apache.spark.sql.kafka010.KafkaSourceProvider", "org.apache.iceberg.spark.SparkCatalog"):
        assert loader.loadClass(name).getName() == name


PROGRAM = """
import os
from tailrace.cli.spark_session import spark_session
from tailrace.settings import SparkSettings
with spark_session(SparkSettings(driver_memory="512m")) as spark:
    print(spark._jvm.ProcessHandle.current().pid(), flush=True)
    os.kill(os.getpid(), 9)
"""


def test_the_jvm_ends_with_a_killed_program():
    result = run_guarded([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=SECONDS)
    assert result.returncode == -9, result.stderr
    jvm = Path("/proc") / result.stdout.split()[-1]
    deadline = time.monotonic() + 200
    while jvm.exists() and "Z" not in (jvm / "stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "the JVM outlived the program"
        time.sleep(0.1)
