"""A job that reads a broker over TLS with a password: it reads, and nothing that Spark tells has the password."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka import Producer

from kafka_security import KafkaSecurity
from tailrace.owned import run_guarded
from tailrace.stand import Kafka
from tailrace.stand.node import ThrowAwayCA

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
RECORDS = 500

PROGRAM = """
import json, sys
from pathlib import Path
from urllib.request import urlopen

from tailrace.cli.spark_session import spark_session
from tailrace.settings import SparkSettings
from tailrace.spark.from_kafka import kafka_records

servers, folder = sys.argv[1], Path(sys.argv[2])
(folder / "events").mkdir()
config = {
    "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": f"file://{folder}/events", "spark.eventLog.compress": "false",
    "spark.sql.ui.explainMode": "extended",
}
told = {}
with spark_session(SparkSettings(master="local[2]", driver_memory="1g", log_level="info", config=config)) as spark:
    frame = kafka_records(spark, servers, "secured", format="json")
    counted = []

    def count(batch, number):
        told["a batch"] = batch._jdf.queryExecution().toString()
        counted.append(batch.groupBy("partition").count().collect())

    query = frame.writeStream.foreachBatch(count).option("checkpointLocation", str(folder / "c"))
    query = query.trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    told["the query"] = query._jsq.explainInternal(True)
    told["progress"] = json.dumps([each.json for each in query.recentProgress])
    told["the frame"] = spark._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended")
    told["batch read"] = str(kafka_records(spark, servers, "secured", format="json", stream=False).count())
    page = spark.sparkContext.uiWebUrl
    app = f"api/v1/applications/{spark.sparkContext.applicationId}"
    executions = json.load(urlopen(f"{page}/{app}/sql?details=true&planDescription=true"))
    assert executions
    pages = [f"{app}/sql?details=true&planDescription=true", f"{app}/environment", f"{app}/jobs", f"{app}/stages",
             "environment/", "SQL/", "StreamingQuery/", "jobs/",
             *(f"SQL/execution/?id={each['id']}" for each in executions)]
    for each in pages:
        told[each] = urlopen(f"{page}/{each}").read().decode()
    rows = sum(row["count"] for batch in counted for row in batch)
for name, where in (("event log", "events"), ("checkpoint", "c")):
    files = (each for each in (folder / where).rglob("*") if each.is_file())
    told[name] = "".join(each.read_bytes().decode(errors="replace") for each in files)
print("RESULT " + json.dumps({"rows": rows, "told": told}))
"""


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> KafkaSecurity:
    return KafkaSecurity(ThrowAwayCA.make(tmp_path_factory.mktemp("certificates")), "alice", "MarkedPassword")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, security: KafkaSecurity) -> Iterator[Kafka]:
    with Kafka.start(security=security, folder=tmp_path_factory.mktemp("secured-kafka")) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(RECORDS):
            producer.produce("secured", json.dumps(number))
        assert producer.flush(60) == 0
        yield broker


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_nothing_that_spark_tells_has_the_password(
    broker: Kafka, security: KafkaSecurity, mechanism: str, tmp_path: Path
) -> None:
    """make secrets"""
    where = f"kafka://{security.user}:{security.password}@{broker.secured_servers}"
    parameters = f"sasl.mechanism={mechanism}&ssl.ca.location={quote(str(security.certificates.ca_file), safe='')}"
    done = run_guarded(
        [sys.executable, "-c", PROGRAM, f"{where}?{parameters}", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result = json.loads(line.removeprefix("RESULT "))
    assert (result["rows"], result["told"]["batch read"]) == (RECORDS, str(RECORDS))
    assert "SparkListenerSQLExecutionStart" in result["told"]["event log"]
    told = {**result["told"], "log": done.stderr}
    assert {where for where, text in told.items() if security.password in text} == set()
