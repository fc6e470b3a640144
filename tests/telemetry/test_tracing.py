"""Which events are sampled, what their records and spans say, and what happens when nobody takes the spans.

The receiver of the spans is one of the tests' own, which decodes them by OpenTelemetry's protobuf.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from capture_harness import Harness
from otlp_receiver import OtlpReceiver, attributes_of
from schema_keeping import KeepingRegistry
from tailrace.capture.formats import make_format
from tailrace.capture.formats.made_events import snapshot_event
from tailrace.capture.formats.make import NAMES
from tailrace.capture.record import CompiledRecords
from tailrace.cli.app import run
from tailrace.errors import MissingExtra, SettingsError
from tailrace.policy import Action, Kind, Policy, Rule
from tailrace.settings import Settings, TelemetrySettings
from tailrace.stand import ReplicaSet
from tailrace.telemetry import NO_TRACING, TRACEPARENT, Sampler, TraceContext, Tracing
from tailrace.telemetry.tracing import telemetry_of
from tailrace.token import ResumeToken
from tailrace.token.resume_token import TokenData


def tokens(count: int) -> list[str]:
    chance = random.Random(1)
    return [f"82{chance.getrandbits(400):0100X}04" for _ in range(count)]


@pytest.mark.parametrize("ratio", [0.0, 0.001, 0.25, 0.5, 1.0])
def test_the_choice_is_that_of_opentelemetry(ratio: float) -> None:
    theirs, ours = TraceIdRatioBased(ratio), Sampler(ratio)
    for token in tokens(2_000):
        decision = theirs.should_sample(None, int(TraceContext.of(token).trace_id, 16), "").decision
        assert ours.takes(token) is (decision is Decision.RECORD_AND_SAMPLE)
        assert ours.takes(token) is ours.takes(token.encode())


def test_who_samples_less_samples_some_of_the_same() -> None:
    few, many = Sampler(0.1), Sampler(0.3)
    chosen = [token for token in tokens(2_000) if few.takes(token)]
    assert 100 < len(chosen) < 300
    assert all(map(many.takes, chosen))


def traced_records(delivered: list[Any]) -> dict[str, str]:
    """The traceparent of records, by their token."""
    headers = [dict(record.headers) for record in delivered]
    return {each["token"].decode(): each[TRACEPARENT].decode() for each in headers if TRACEPARENT in each}


@pytest.mark.parametrize("format", ["json", "bson"])
def test_sampled_events_have_a_header_and_spans(database: Any, tmp_path: Path, format: str) -> None:
    with OtlpReceiver.serve() as receiver:
        settings = TelemetrySettings.model_validate({"endpoint": receiver.url, "sample_ratio": 0.3})
        with telemetry_of(settings) as tracing:
            harness = Harness(
                database.client,
                tmp_path,
                [f"{database.name}.orders"],
                options={"start": "now", "tracing": tracing},
                format=make_format(format, tombstones=True, sample_ratio=0.3),
            )
            harness.run_until_idle()
            database.orders.insert_many([{"_id": number} for number in range(40)])
            database.orders.delete_one({"_id": 0})
            harness.run_until_idle()
        found = {
            dict(record.headers)["token"].decode(): bson.decode(record.event)["operationType"]
            for record in harness.delivered
        }
        sampled = {token for token in found if tracing.sampler.takes(token)}
        assert 0 < len(sampled) < len(found) == 41
        assert traced_records(harness.delivered) == {token: TraceContext.of(token).traceparent for token in sampled}
        assert {span.trace_id.hex() for span in receiver.spans} == {TraceContext.of(each).trace_id for each in sampled}
        assert receiver.services == {"tailrace"}
        for token in sampled:
            context = TraceContext.of(token)
            write, publish = sorted(receiver.trace(context.trace_id), key=lambda span: span.kind)
            assert (write.span_id.hex(), write.parent_span_id.hex()) == (context.write_span, "")
            assert (publish.span_id.hex(), publish.parent_span_id.hex()) == (context.publish_span, context.write_span)
            assert write.name == f"{found[token]} {database.name}.orders"
            assert write.start_time_unix_nano <= write.end_time_unix_nano == publish.start_time_unix_nano
            assert publish.start_time_unix_nano <= publish.end_time_unix_nano
            assert attributes_of(publish)["tailrace.stream"] == "orders"
            assert attributes_of(write)["db.operation.name"] == found[token]


def test_a_tombstone_has_the_header_too(database: Any, tmp_path: Path) -> None:
    harness = Harness(
        database.client,
        tmp_path,
        [f"{database.name}.orders"],
        options={"start": "now", "tracing": Tracing(1.0, lambda _: None)},
        format=make_format("json", tombstones=True, sample_ratio=1.0),
    )
    harness.run_until_idle()
    database.orders.insert_one({"_id": 1})
    database.orders.delete_one({"_id": 1})
    harness.run_until_idle()
    assert [record.value is None for record in harness.delivered] == [False, False, True]
    assert all(TRACEPARENT in dict(record.headers) for record in harness.delivered)


@pytest.mark.parametrize("format", NAMES)
def test_a_record_has_the_header_once_and_last(format: str) -> None:
    shown = {"operationType": "insert", "clusterTime": Timestamp(5, 1), "ns": {"db": "shop", "coll": "orders"}}
    event = bson.encode({"_id": {"_data": tokens(1)[0]}, **shown, "fullDocument": {}, "documentKey": {"_id": 1}})
    (record,) = make_format(format, fields=["a"], registry=KeepingRegistry(), sample_ratio=1.0).records(event)
    names = [name for name, _ in record.headers]
    assert names.count(TRACEPARENT) == 1
    assert names[-1] == TRACEPARENT


def test_batches_without_a_sampled_event_stay_in_the_kernel() -> None:
    pytest.importorskip("tailrace_kernel")
    event = {"operationType": "insert", "clusterTime": Timestamp(5, 1), "ns": {"db": "shop", "coll": "orders"}}
    document = {"fullDocument": {"_id": 1}, "documentKey": {"_id": 1}}
    events = [bson.encode({"_id": {"_data": token}, **event, **document}) for token in tokens(50)]
    sampler = Sampler(0.1)
    plain = [each for each in events if not sampler.sampled([each])]
    assert 0 < len(plain) < len(events)
    traced, usual = make_format("json", sample_ratio=0.1), make_format("json")
    assert isinstance(traced.batch(plain), CompiledRecords)
    assert [record[:2] for record in traced.batch(events)] == [record[:2] for record in usual.batch(events)]


def test_the_ids_are_made_of_the_token_as_it_leaves_the_process() -> None:
    """A policy that hashes a key changes the token, which holds it: no trace id tells of a key that is hidden."""
    policy = Policy([Rule(("shop.orders",), ("_id",), Action(Kind.HASH))], b"0123456789abcdef")
    key = bson.encode({"_id": "a secret"})
    data = TokenData(Timestamp(5, 1), uuid=bytes(16), event_identifier=key)
    shown = {"operationType": "insert", "ns": {"db": "shop", "coll": "orders"}, "documentKey": {"_id": "a secret"}}
    event = bson.encode({"_id": ResumeToken.encode(data).to_document(), **shown, "fullDocument": {"_id": "a secret"}})
    (record,) = make_format("json", policy=policy, sample_ratio=1.0).batch([event])
    headers = dict(record.headers)
    assert headers[TRACEPARENT].decode() == TraceContext.of(headers["token"]).traceparent
    assert headers[TRACEPARENT].decode() != TraceContext.of(ResumeToken.encode(data).hex).traceparent


def test_what_is_no_write_has_no_trace() -> None:
    row = snapshot_event("shop.orders", bson.encode({"_id": 1}), bson.encode({"_data": "82AA"}), Timestamp(5, 1))
    assert Sampler(1.0).sampled([row]) == []
    assert Sampler(1.0).sampled([b"\x05\0\0\0\0", bson.encode({"_id": {"_data": 5}})]) == []


def test_a_receiver_that_is_away_or_refuses_stops_nothing(database: Any, tmp_path: Path) -> None:
    with OtlpReceiver.serve() as receiver:
        receiver.status = 400
        refusing = TelemetrySettings.model_validate({"endpoint": receiver.url, "sample_ratio": 1})
        away = TelemetrySettings.model_validate({"endpoint": "http://127.0.0.1:9", "sample_ratio": 1})
        for number, settings in enumerate((refusing, away)):
            with telemetry_of(settings) as tracing:
                harness = Harness(
                    database.client,
                    tmp_path / str(number),
                    [f"{database.name}.orders"],
                    options={"start": "now", "tracing": tracing},
                    format=make_format("json", sample_ratio=1.0),
                )
                harness.run_until_idle()
                database.orders.insert_one({})
                harness.run_until_idle()
            assert len(harness.delivered) == 1


def test_metrics_are_the_ones_of_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    counter = Counter("shop_events", "Events.", ("stream",), registry=registry)
    gauge = Gauge("shop_window", "Window.", registry=registry)
    seconds = Histogram("shop_seconds", "Time.", ("stream",), buckets=(0.1, 1.0), registry=registry)
    counter.labels("a").inc(3)
    gauge.set(float("inf"))
    for value in (0.05, 0.5, 0.6, 7.0):
        seconds.labels("a").observe(value)
    monkeypatch.setattr("tailrace.telemetry.exporting.REGISTRY", registry)
    with OtlpReceiver.serve() as receiver:
        chosen = {"endpoint": receiver.url, "service_name": "shop"}
        with telemetry_of(TelemetrySettings.model_validate(chosen)):
            pass
        assert receiver.services == {"shop"}
        (point,) = receiver.metric("shop_events").sum.data_points
        assert (point.as_double, receiver.metric("shop_events").sum.is_monotonic) == (3.0, True)
        assert attributes_of(point) == {"stream": "a"}
        assert receiver.metric("shop_window").gauge.data_points[0].as_double == float("inf")
        (bars,) = receiver.metric("shop_seconds").histogram.data_points
        assert list(bars.bucket_counts) == [1, 2, 1]
        assert list(bars.explicit_bounds) == [0.1, 1.0]
        assert (bars.count, bars.sum) == (4, pytest.approx(8.15))


def test_without_an_endpoint_nothing_is_loaded() -> None:
    before = set(sys.modules)
    with telemetry_of(TelemetrySettings()) as tracing:
        assert tracing is NO_TRACING
    assert not {name for name in set(sys.modules) - before if name.startswith("opentelemetry")}
    assert NO_TRACING.sampled([b"no event at all"]) == ()


def test_a_missing_extra_and_a_bad_address_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"telemetry\.endpoint"):
        Settings.load(flags={"telemetry.endpoint": "collector:4318"})
    monkeypatch.delitem(sys.modules, "tailrace.telemetry.exporting", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    settings = TelemetrySettings.model_validate({"endpoint": "http://127.0.0.1:9"})
    with pytest.raises(MissingExtra, match=r"telemetry\.endpoint") as missing, telemetry_of(settings):
        pass
    assert "tailrace[otel]" in (missing.value.hint or "")


def test_a_verb_traces_as_the_settings_say(mongodb: ReplicaSet, database: Any, tmp_path: Path) -> None:
    with OtlpReceiver.serve() as receiver:
        file = tmp_path / "tailrace.toml"
        file.write_text(
            f'[mongodb]\nuri = "{mongodb.uri}"\n[telemetry]\nendpoint = "{receiver.url}"\nsample_ratio = 1\n'
            f'service_name = "shop"\n[capture]\nname = "traced"\nnamespaces = ["{database.name}.orders"]\n'
            f'start = "now"\nsink = "file:{tmp_path}/out"\nposition_store = "file:{tmp_path}/positions"\n'
        )
        produce = ["--config", str(file), "produce", "--until-idle"]
        assert run(produce) == 0
        database.orders.insert_one({"_id": 1})
        assert run(produce) == 0
        assert [span.name for span in receiver.spans] == [
            f"insert {database.name}.orders",
            f"publish {database.name}.orders",
        ]
        assert receiver.services == {"shop"}
        events = [attributes_of(point) for point in receiver.metric("tailrace_events").sum.data_points]
        assert {"stream": "traced", "op": "insert", "namespace": f"{database.name}.orders"} in events
