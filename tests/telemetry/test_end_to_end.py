"""One trace from a write to features and tables, on real servers; what receives the spans is a server of the tests.

`make telemetry` runs it.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from feature_load import Load, equal_now, transactions
from otlp_receiver import OtlpReceiver
from spark_queries import run_to_end
from tailrace.capture.producer.assembly import Capture
from tailrace.features.job import FeatureJob
from tailrace.settings import Settings, TelemetrySettings, WarehouseSettings
from tailrace.spark import from_kafka
from tailrace.telemetry import TraceContext, Tracing
from tailrace.telemetry.tracing import telemetry_of
from tailrace.warehouse.job import COLUMNS, WarehouseJob

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]
_CONSUMER = 5


def captured(mongodb: Any, kafka: Any, database: Any, folder: Path, tracing: Tracing, load: Load) -> str:
    """Capture what is written meanwhile into a topic; gives its name."""
    namespace = f"{database.name}.tx"
    settings = Settings.model_validate(
        {
            "mongodb": {"uri": mongodb.uri},
            "capture": {
                "namespaces": [namespace],
                "sink": f"kafka://{kafka.bootstrap_servers}",
                "position_store": f"file:{folder / 'positions'}",
                "start": "now",
                "format": "canonical",
            },
        }
    )
    with mongodb.client() as client, Capture.open(settings, client) as capture:
        capture.producer(stop_when_idle=True, tracing=tracing).run()
        load.run(60)
        capture.producer(stop_when_idle=True, tracing=tracing).run()
    return f"tailrace.{namespace}"


def test_a_write_is_followed_to_features_and_tables(
    spark: Any, mongodb: Any, kafka: Any, redis_server: Any, database: Any, tmp_path: Path
) -> None:
    import redis
    from confluent_kafka import Consumer

    with OtlpReceiver.serve() as receiver:
        chosen = TelemetrySettings.model_validate({"endpoint": receiver.url, "sample_ratio": 0.2})
        with telemetry_of(chosen) as tracing:
            topic = captured(mongodb, kafka, database, tmp_path, tracing, Load(database.tx, 1))
            features = FeatureJob(
                transactions(f"{database.name}.tx", "traced"),
                redis_server.url,
                str(tmp_path / "dead"),
                format="canonical",
                tracing=tracing,
            )
            features.prepare()
            records = features.records(spark, kafka.bootstrap_servers, [topic])
            run_to_end(records, features.apply, tmp_path / "features")
            name = f"lake_{uuid.uuid4().hex[:8]}"
            lake = WarehouseSettings(folder=str(tmp_path / name), catalog=name, maintain_batches=0)
            tables = WarehouseJob(lake, format="canonical", tracing=tracing)
            events = from_kafka(
                spark,
                kafka.bootstrap_servers,
                topic,
                format="canonical",
                schema=COLUMNS,
                stream=False,
                keep_bad_records=True,
            )
            tables.apply(events, 0)
        with redis.Redis.from_url(redis_server.url) as client:
            assert equal_now(client, database.tx, "traced")

    group = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**group, "enable.partition.eof": True})
    consumer.subscribe([topic])
    headers: list[dict[str, bytes]] = []
    try:
        while len(headers) < events.count():
            message = consumer.poll(60)
            assert message is not None
            if message.error() is None:
                headers.append(dict(message.headers() or []))
    finally:
        consumer.close()
    traced = {each["traceparent"].decode(): each["token"].decode() for each in headers if "traceparent" in each}
    assert 0 < len(traced) < len(headers)
    assert {span.trace_id.hex() for span in receiver.spans} == {parent.split("-")[1] for parent in traced}
    for traceparent, token in traced.items():
        context = TraceContext.of(token)
        spans = {span.name.split()[0]: span for span in receiver.trace(context.trace_id)}
        assert len(spans) == 4
        assert spans["publish"].parent_span_id.hex() == context.write_span
        for job in ("features", "tables"):
            assert spans[job].kind == _CONSUMER
            assert spans[job].parent_span_id.hex() == traceparent.split("-")[2] == spans["publish"].span_id.hex()
            assert spans[job].end_time_unix_nano > spans["publish"].end_time_unix_nano


def test_a_job_that_reads_mongodb_itself_tells_of_the_write_too(
    spark: Any, mongodb: Any, redis_server: Any, database: Any, tmp_path: Path
) -> None:
    spans: list[Any] = []
    job = FeatureJob(
        transactions(f"{database.name}.tx", "direct"),
        redis_server.url,
        in_driver=True,
        tracing=Tracing(1.0, spans.append),
    )
    job.prepare()
    start = database.client.admin.command("ping")["operationTime"]
    Load(database.tx, 1).run(5)
    options = {"startAtOperationTime": f"{start.time}:{start.inc + 1}"}
    run_to_end(job.events(spark, mongodb.uri, options), job.apply, tmp_path / "direct")
    applied = [span for span in spans if span.kind == "consumer"]
    assert applied
    assert {span.parent for span in applied} == {span.span_id for span in spans if span.parent is None}
