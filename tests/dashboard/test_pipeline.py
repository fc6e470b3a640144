"""The dashboard over a pipeline of real parts: what is written is observed, measured, explained and acted upon."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import httpx
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bson import Timestamp

from dashboard_site import CONTROL_TOKEN, TOKEN, Site, dashboard, write_settings
from json_schema import complaints
from tailrace.capture.dead_letters.dead_letters import TopicDeadLetters
from tailrace.capture.kafka_client import KafkaAddress
from tailrace.capture.positions import open_store
from tailrace.capture.recovery.gaps import GapLedger
from tailrace.errors import RecordRefused
from tailrace.features import Definition, Feature, FeatureStore, Kind, Window
from tailrace.features.progress import Progress, ProgressStore
from tailrace.features.store import Change
from waiting import wait_until as until


def test_a_write_is_an_event_on_the_page_with_its_token_decoded(pipeline: Any) -> None:
    pipeline.orders.insert_one({"_id": "observed", "city": "Oslo", "amount": 12.5})
    site: Site = pipeline.site
    (line,) = until(lambda: site.get("/api/events", text="oslo", operation="insert"), "the event of the write")
    assert (line["namespace"], line["key"]) == ("dashboard.orders", "observed")
    assert line["summary"] == "city=Oslo  amount=12.5"
    detail = site.get(f"/api/events/{line['number']}")
    assert detail["event"]["fullDocument"] == {"_id": "observed", "city": "Oslo", "amount": 12.5}
    assert detail["token_parts"]["tokenType"] == "event"
    assert detail["token_parts"]["eventIdentifier"] == {"_id": "observed"}
    assert detail["source"].startswith("dash.dashboard.orders, partition ")
    assert site.get(f"/api/tokens/{detail['token']}") == detail["token_parts"]


def test_a_topic_that_appears_later_is_read_from_its_start(pipeline: Any) -> None:
    pipeline.client.dashboard.late.insert_one({"_id": 1})
    found = until(lambda: pipeline.site.get("/api/events", namespace="dashboard.late"), "the event of a new topic")
    assert found[0]["operation"] == "insert"


def test_every_box_is_well_and_the_arrows_have_rates_and_latencies(pipeline: Any) -> None:
    site: Site = pipeline.site

    def flowing() -> bool:
        pipeline.orders.insert_many([{} for _ in range(20)])
        arrows = {(arrow["source"], arrow["target"]): arrow for arrow in site.get("/api/flow")["arrows"]}
        captured, sunk = arrows["mongodb", "capture"], arrows["capture", "sink"]
        is_rated = (captured["events_per_second"] or 0) > 0 and (sunk["events_per_second"] or 0) > 0
        return is_rated and sunk["latency_seconds"] is not None

    until(flowing, "rates on the arrows")
    colours = site.colours()
    assert {name: colours[name] for name in ("mongodb", "capture", "sink")} == dict.fromkeys(
        ("mongodb", "capture", "sink"), "green"
    )
    assert colours["tables"] == "grey"
    assert "gateway" not in colours
    latency = {one["hop"]: one for one in site.get("/api/latency")}
    assert 0 <= latency["mongodb-kafka"]["p50"] <= latency["mongodb-kafka"]["p99"]
    assert latency["mongodb-kafka"]["resolution_seconds"] == 0.001


def test_the_oplog_shows_where_the_stream_stands(pipeline: Any) -> None:
    site: Site = pipeline.site
    (window,) = site.get("/api/oplog")
    (marker,) = [each for each in window["markers"] if each["kind"] == "stream"]
    assert marker["name"] == "orders"
    assert window["first"] <= marker["at"] <= window["last"] + 1
    assert 0.5 < marker["ratio"] <= 1
    assert window["half_ratio"] == 0.5
    (stream,) = site.get("/api/streams")
    assert (stream["name"], stream["producer"]) == ("orders", pipeline.producer)
    assert stream["writer"]
    (shard,) = site.get("/api/shards")
    assert shard["marks"][0]["stream"] == "orders"
    assert not shard["blocks_merge"]


def test_the_history_has_the_series_of_every_chart(pipeline: Any) -> None:
    site: Site = pipeline.site

    def charted() -> bool:
        pipeline.orders.update_one({"_id": "first"}, {"$inc": {"touched": 1}})
        series = site.get("/api/history", span="5m")["series"]
        wanted = ("lag/orders/rs0", "rate/op/update", "rate/ns/dashboard.orders", "batch/events", "commit/p95",
                  "latency/mongodb-kafka/p99")  # fmt: skip
        return all(name in series for name in wanted) and any(series["rate/op/update"])

    until(charted, "all series")
    history = site.get("/api/history", span="1h")
    assert history["step_seconds"] == 10
    assert all(len(values) == len(history["at"]) for values in history["series"].values())
    assert site.http.get("/api/history", params={"span": "1d"}).status_code == 400


DEFINITION = Definition(
    "spent", "dashboard.orders", "user", "at", (Feature("orders", Kind.COUNT, Window.parse("1h", None)),)
)


def test_the_features_of_an_entity_and_how_long_they_took(pipeline: Any) -> None:
    """The job's own store and progress are used, without Spark around them."""
    site: Site = pipeline.site
    store = FeatureStore.connect(pipeline.redis_url, DEFINITION)
    store.begin()
    progress_store = ProgressStore.connect(pipeline.redis_url, "spent")
    until(lambda: "spent" in [one["name"] for one in site.get("/api/features")], "the definition")
    for batch in range(2):
        document = {"_id": f"spent{batch}", "user": "ann/1", "at": datetime.now(UTC)}
        pipeline.orders.insert_one(document)
        (line,) = until(lambda name=document["_id"]: site.get("/api/events", text=name), "the event")
        token = site.get(f"/api/events/{line['number']}")["token"]
        seconds = int(line["cluster_time"].split(",")[0])
        store.apply([Change(document["_id"], token, bson.encode(document), as_of=seconds)])
        progress_store.save(Progress(batch, token, seconds))
        until(lambda wanted=batch: site.get("/api/features")[0]["batch"] == wanted, "the batch")
    found = site.get("/api/features/spent/ann%2F1")
    assert found["values"] == {"orders": 2}
    assert found["as_of"] is not None
    nobody = site.get("/api/features/spent/nobody")
    assert (nobody["values"], nobody["as_of"]) == ({"orders": 0}, None)
    assert site.http.get("/api/features/other/1").status_code == 404
    hops = until(lambda: {one["hop"]: one for one in site.get("/api/latency") if "redis" in one["hop"]}, "the hop")
    assert hops["mongodb-redis"]["p50"] >= hops["kafka-redis"]["p50"] >= 0
    assert site.box("features")["condition"]["colour"] == "green"
    assert "features spent" in [marker["name"] for marker in site.get("/api/oplog")[0]["markers"]]


def test_dead_letters_of_every_part_are_shown_and_new_ones_want_attention(kafka: Any, tmp_path: Path) -> None:
    settings = write_settings(
        tmp_path,
        capture={"sink": f"kafka://{kafka.bootstrap_servers}", "topic_prefix": "aside"},
        features={"dead_letters": tmp_path / "letters"},
        warehouse={"folder": tmp_path / "warehouse"},
    )
    with TopicDeadLetters(KafkaAddress.parse(f"kafka://{kafka.bootstrap_servers}"), "aside.dead-letters") as letters:
        event = {"_id": {"_data": "8265F0"}, "operationType": "insert", "ns": {"db": "dashboard", "coll": "orders"}}
        letters.add(bson.encode(event), RecordRefused("too large for the topic"))
    batch = tmp_path / "letters" / "spent" / "batch=1"
    batch.mkdir(parents=True)
    bad = {"bad_record": b"{", "cause": "record t/0@1 is not of the format bson"}
    parquet.write_table(pa.Table.from_pylist([bad]), batch / "part-0.parquet")
    with dashboard(settings) as site:
        until(lambda: {one["part"]: one["total"] for one in site.get("/api/dead-letters")} == {
            "capture": 1, "features": 1, "warehouse": 0
        }, "the dead letters")  # fmt: skip
        newest = {one["part"]: one["newest"] for one in site.get("/api/dead-letters")}
        assert newest["capture"][0]["cause"] == "record-refused"
        assert newest["capture"][0]["message"] == "too large for the topic"
        assert newest["features"][0]["cause"] == "event-unconvertible"
        box = until(lambda: (b := site.box("capture"))["condition"]["colour"] == "amber" and b, "the amber box")
        assert box["condition"]["reason"].endswith("; 1 dead letter")


def test_gaps_are_shown(pipeline: Any) -> None:
    site: Site = pipeline.site
    with open_store(f"file:{pipeline.folder / 'positions'}") as store:
        ledger = GapLedger(store.cells, "past")
        gap = ledger.record("mongodb-286", None, first_known=Timestamp(1_700_000_000, 1))
        (open_gap,) = until(lambda: site.get("/api/gaps"), "the gap")
        assert (open_gap["stream"], open_gap["state"], open_gap["is_open"]) == ("past", "open", True)
        until(lambda: site.get("/api/state")["overall"]["colour"] == "red", "the alarm")
        ledger.close(gap, records=3, deletes=1)
        until(lambda: not site.get("/api/gaps")[0]["is_open"], "the closed gap")


def test_capture_is_paused_resumed_and_read_again_on_request(pipeline: Any) -> None:
    site: Site = pipeline.site
    assert site.act("pause").json()["answer"]["accepted"] == "pause"
    until(lambda: site.get("/api/streams")[0]["state"] == "paused", "the pause")
    box = until(lambda: (b := site.box("capture"))["condition"]["colour"] == "amber" and b, "the amber box")
    assert "pause" in box["condition"]["reason"]
    assert site.act("resume", producer=pipeline.producer).status_code == 200
    until(lambda: site.get("/api/streams")[0]["state"] in ("idle", "live"), "the end of the pause")
    answer = site.act("snapshot", namespaces=["dashboard.orders"]).json()
    assert answer["answer"]["collections"] == ["dashboard.orders"]
    until(lambda: site.get("/api/events", operation="read", text="first"), "the documents of the snapshot")


def test_a_recovery_needs_its_dry_run_first(pipeline: Any) -> None:
    site: Site = pipeline.site
    assert site.act("recover", dry_run=False).status_code == 409
    assert site.act("recover", dry_run=False, confirmation="made up").status_code == 409
    dry = site.act("recover").json()
    assert dry["answer"]["is_lost"] is False
    assert dry["confirmation"]
    # A producer that is busy with a snapshot refuses, and the confirmation stays good.
    request = {"dry_run": False, "confirmation": dry["confirmation"]}
    done = until(lambda: (a := site.act("recover", **request)).status_code == 200 and a, "a producer that is free")
    assert done.json()["answer"]["accepted"] == "recover"
    assert site.act("recover", dry_run=False, confirmation=dry["confirmation"]).status_code == 409
    until(lambda: site.get("/api/streams")[0]["state"] in ("idle", "live"), "the end of the recovery")


@pytest.mark.parametrize(
    ("action", "body", "status"),
    [
        ("destroy", {}, 404),
        ("pause", {"producer": "http://elsewhere:1"}, 404),
        ("pause", {"force": True}, 400),
        ("snapshot", {"namespaces": 7}, 400),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_hint(
    pipeline: Any, action: str, body: dict[str, Any], status: int
) -> None:
    answer = pipeline.site.act(action, **body)
    assert answer.status_code == status
    assert set(answer.json()) == {"code", "message", "hint"}


def test_actions_need_the_token_and_json(pipeline: Any) -> None:
    site: Site = pipeline.site
    assert site.act("pause", token=None).status_code == 401
    assert site.act("pause", token="wrong").status_code == 401
    assert site.http.get("/api/actions/pause").status_code == 405
    headers = {"Authorization": f"Bearer {TOKEN}"}
    form = site.http.post("/api/actions/pause", data={"a": "b"}, headers=headers)
    assert form.status_code == 415
    large = site.http.post("/api/actions/pause", json={"x": "y" * 100_000}, headers=headers)
    assert large.status_code == 413


def test_every_answer_is_as_the_description_says(pipeline: Any) -> None:
    site: Site = pipeline.site
    document = site.get("/api/openapi.json")
    schemas = document["components"]["schemas"]
    number = site.get("/api/events")[0]["number"]
    filled = {"number": number, "name": "spent", "entity": "ann", "token": "82"}
    checked = 0
    for path, methods in document["paths"].items():
        if "get" not in methods or path == "/api/stream":
            continue
        answer = site.http.get(path.format(**filled))
        responses = methods["get"]["responses"]
        content = responses.get(str(answer.status_code), responses.get("default"))["content"]["application/json"]
        assert list(complaints(answer.json(), content["schema"], schemas)) == [], path
        checked += answer.status_code == 200
    assert checked >= 16


def test_the_answers_to_actions_are_as_the_description_says(pipeline: Any) -> None:
    site: Site = pipeline.site
    document = site.get("/api/openapi.json")
    for action, body in (("recover", {"dry_run": True}), ("resume", {}), ("pause", {"nonsense": 1})):
        answer = site.act(action, **body)
        responses = document["paths"][f"/api/actions/{action}"]["post"]["responses"]
        described = responses.get(str(answer.status_code), responses["default"])["content"]["application/json"]
        assert list(complaints(answer.json(), described["schema"], document["components"]["schemas"])) == []


def test_the_stream_sends_states_and_events(pipeline: Any) -> None:
    site: Site = pipeline.site
    pipeline.orders.insert_one({"_id": "streamed"})
    kinds, text = set(), ""
    deadline = time.monotonic() + 200
    with site.http.stream("GET", "/api/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            kinds |= {line} if line.startswith("event: ") else set()
            text += line if line.startswith("data: [") else ""
            if kinds == {"event: state", "event: events"} and "streamed" in text:
                break
            assert time.monotonic() < deadline, kinds


def test_probes_and_metrics(pipeline: Any) -> None:
    site: Site = pipeline.site
    assert site.get("/healthz") == {"healthy": True}
    assert site.get("/readyz") == {"ready": True}
    metrics = site.http.get("/metrics").text
    assert 'tailrace_dashboard_source_up{source="mongodb"} 1.0' in metrics
    assert 'tailrace_position_age_seconds{shard="rs0",stream="orders"}' in metrics


def test_no_secret_is_in_any_answer(pipeline: Any) -> None:
    site: Site = pipeline.site
    paths = [path for path in site.get("/api/openapi.json")["paths"] if "{" not in path and path != "/api/stream"]
    for path in ["/", "/metrics", "/static/main.js", *(path for path in paths if "actions" not in path)]:
        text = site.http.get(path).text
        assert TOKEN not in text, path
        assert CONTROL_TOKEN not in text, path


def test_pages_that_are_not_there_are_answered_in_the_form_of_all_errors(pipeline: Any) -> None:
    answer: httpx.Response = pipeline.site.http.get("/api/nothing")
    assert (answer.status_code, answer.json()["code"]) == (404, "control-refused")
    assert pipeline.site.http.get("/static/../app.py").status_code == 404
    assert pipeline.site.http.get("/api/events/999999999").status_code == 404
    assert pipeline.site.http.get("/api/events", params={"limit": "many"}).status_code == 400
