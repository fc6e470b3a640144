"""Rows of small batches come to the driver without a Spark job: the same rows, and only those of the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer

from feature_load import transactions
from spark_queries import wait_until
from tailrace.features.job import FeatureJob
from tailrace.spark.handover import HandOver, hand_over

pytestmark = pytest.mark.xdist_group("spark")


def test_the_rows_are_those_of_the_batch_and_spark_reports_them(spark, mongodb, database, tmp_path):
    handed, batches = HandOver(), []
    options = {"uri": mongodb.uri, "namespaces": database.name, "maxEventsPerBatch": "50", **handed.options()}
    stream = spark.readStream.format("tailrace").options(**options).schema("raw binary").load()

    def apply(frame: Any, number: int) -> None:
        found = handed.take(number)
        read_by_tasks = None if found is not None and number % 2 else frame.toArrow()["raw"].to_pylist()
        batches.append((number, None if found is None else found["raw"].to_pylist(), read_by_tasks))

    handed.expect(str(tmp_path / "c"))
    query = stream.writeStream.foreachBatch(apply).option("checkpointLocation", str(tmp_path / "c")).start()
    handed.follow(query)
    try:
        wait_until(lambda: batches, query)  # where a stream begins is an empty batch
        for begin in range(0, 400, 100):
            database.orders.insert_many([{"_id": begin + number} for number in range(100)])
            wait_until(lambda: sum(len(a or b or ()) for _, a, b in batches) >= begin + 100, query)  # noqa: B023
        reported = {one["batchId"]: one["numInputRows"] for one in query.recentProgress}
    finally:
        query.stop()
    taken = [(number, rows, read) for number, rows, read in batches if rows is not None]
    assert len(taken) >= 4
    assert all(rows == read for _, rows, read in taken if read is not None)
    without_a_job = [(number, rows) for number, rows, read in taken if read is None and number in reported]
    assert without_a_job
    assert {number: reported[number] for number, _ in without_a_job} == {n: len(rows) for n, rows in without_a_job}


def checkpoint(folder: Path, *ends: str) -> str:
    (folder / "offsets").mkdir()
    for number, end in enumerate(ends):
        (folder / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"token": "{end}"}}')
    return str(folder)


def waiting(location: str) -> tuple[HandOver, Path]:
    handed = HandOver()
    handed.expect(location)
    query: Any = object()  # its figures are not there to be counted, which ends nothing
    handed.follow(query)
    return handed, Path(handed.options()["handOverFolder"])


ROWS = [pa.record_batch([pa.array([b"event"])], names=["raw"])]


@pytest.mark.parametrize(
    ("start", "end", "is_taken"), [("a", "b", True), ("a", "c", False), ("x", "b", False), ("b", "c", False)]
)
def test_rows_of_another_range_are_left(tmp_path: Path, start: str, end: str, is_taken: bool):
    handed, folder = waiting(checkpoint(tmp_path, "a", "b", "c"))
    assert hand_over(str(folder), {"token": start}, {"token": end}, ROWS)
    assert (handed.take(1) is not None) == is_taken
    assert handed.take(1) is None, "each is taken once"
    assert list(folder.iterdir()) == []


def test_what_is_not_there_or_damaged_is_read_by_spark(tmp_path: Path):
    handed, folder = waiting(checkpoint(tmp_path, "a", "b"))
    assert handed.take(1) is None
    (folder / "batch.arrow").write_bytes(b"\xff\xff\xff\xff\x10\x00")
    assert handed.take(1) is None
    assert not hand_over(str(folder / "gone"), {"token": "a"}, {"token": "b"}, ROWS)
    assert folder.stat().st_mode & 0o077 == 0, "documents are nobody else's business"


@pytest.mark.parametrize("location", ["s3a://bucket/checkpoint", "hdfs:///checkpoint"])
def test_a_checkpoint_elsewhere_proves_nothing(location: str):
    handed, folder = waiting(location)
    assert hand_over(str(folder), {"token": "a"}, {"token": "b"}, ROWS)
    assert handed.take(0) is None


def test_a_job_that_takes_rows_can_be_sent_to_a_server_of_connect():
    """Connect pickles what is done with every batch, with the job behind it."""
    job = FeatureJob(transactions("d.c", "n"), "redis://127.0.0.1:1", in_driver=True)
    job.handed_over.options()
    sent = CloudPickleSerializer().loads(CloudPickleSerializer().dumps(job.apply)).__self__
    assert (sent.definition, sent.redis_url) == (job.definition, job.redis_url)
    assert sent.handed_over.take(0) is None
