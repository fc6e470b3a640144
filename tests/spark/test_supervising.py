"""What ends a job for good is said with its cause, at once; what may pass is tried again."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import bson
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException

from feature_load import transactions_toml
from spark_queries import SECONDS
from tailrace.capture.formats import make_format
from tailrace.errors import DiskFull, HistoryLost
from tailrace.owned import GuardedProcess
from tailrace.spark import from_kafka, supervise
from tailrace.spark.failures import cause_of, permanent_error

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


def produce(servers: str, topic: str, count: int) -> None:
    producer, format = Producer({"bootstrap.servers": servers}), make_format("bson")
    for number in range(count):
        event = {"_id": {"_data": f"82{number:016X}"}, "operationType": "delete", "documentKey": {"_id": number}}
        (record,) = format.records(bson.encode({**event, "ns": {"db": "x", "coll": "y"}}))[:1]
        producer.produce(topic, record.value, record.key)
    assert producer.flush(30) == 0


def test_offsets_that_kafka_has_removed_are_lost_history(spark, kafka, tmp_path):
    topic, servers = uuid.uuid4().hex, kafka.bootstrap_servers
    starts: list[int] = []

    def run() -> None:
        starts.append(1)
        frame = from_kafka(spark, servers, topic, format="bson")
        writer = frame.writeStream.foreachBatch(lambda rows, _: rows.count()).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / "c")).start()

    produce(servers, topic, 5)
    supervise(run)
    produce(servers, topic, 20)
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.delete_records([TopicPartition(topic, 0, 15)]).values():
        done.result(SECONDS)
    with pytest.raises(HistoryLost, match="no longer have what comes next") as lost:
        supervise(run)
    assert len(starts) == 2, "it is not tried again"
    assert "fail_on_data_loss" in lost.value.hint


class FailsToStop:
    """A query that ends, and whose end is reported by Spark as an error."""

    def __init__(self, query: Any) -> None:
        self._query = query

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def stop(self) -> None:
        self._query.stop()
        raise RuntimeError("An error occurred while calling o213.stop")


def test_a_query_that_has_done_its_work_is_not_a_failure_because_of_its_end(spark, kafka, tmp_path):
    topic, seen = uuid.uuid4().hex, []
    produce(kafka.bootstrap_servers, topic, 5)
    frame = from_kafka(spark, kafka.bootstrap_servers, topic, format="bson")
    writer = frame.writeStream.foreachBatch(lambda rows, _: seen.append(rows.count())).trigger(availableNow=True)
    supervise(lambda: FailsToStop(writer.option("checkpointLocation", str(tmp_path / "c")).start()))
    assert sum(seen) == 5


def test_a_full_disk_is_named_and_the_innermost_cause_is_shown():
    text = "[STREAM_FAILED]\nCaused by: a.b.C: x\nCaused by: java.io.IOException: No space left on device\n"
    failure = StreamingQueryException(text)
    assert cause_of(failure) == "java.io.IOException: No space left on device"
    assert isinstance(permanent_error(failure), DiskFull)
    assert permanent_error(StreamingQueryException("[STREAM_FAILED] a worker was killed")) is None


def test_ctrl_c_ends_a_job_as_it_should(mongodb, database, redis_server, tmp_path):
    definition = tmp_path / "features.toml"
    definition.write_text(transactions_toml(f"{database.name}.tx", "interrupted"))
    where = ["--uri", mongodb.uri, "--redis", redis_server.url, "--checkpoint", str(tmp_path / "c")]
    command = [sys.executable, "-m", "tailrace.cli.app", "features", str(definition), *where]
    log = tmp_path / "stderr"
    with log.open("wb") as stderr:
        process = GuardedProcess(command, stderr=stderr, stdout=subprocess.DEVNULL)
        try:
            wait_for(tmp_path / "c" / "commits" / "0", process)
            process.send_signal(2)
            assert process.wait(SECONDS) == 130, log.read_text()
        finally:
            process.kill()
    assert "report it" not in log.read_text()


def wait_for(path: Path, process: GuardedProcess) -> None:
    from spark_queries import wait_until

    wait_until(lambda: path.exists() or process.poll() is not None)
    assert path.exists()
