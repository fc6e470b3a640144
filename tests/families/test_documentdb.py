"""Amazon DocumentDB, by a scripted server that answers as its documentation says; no real one was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from pymongo import MongoClient
from typer.testing import CliRunner

from scripted_server import Refusal, ScriptedServer
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.source.source import Selection, Start, make_source
from tailrace.cli.app import app
from tailrace.errors import DeploymentUnsuitable, HistoryLost
from tailrace.monitor import shard_readers
from tailrace.settings import Settings
from tailrace.spark.offset import Offset
from tailrace.spark.options import SourceOptions
from tailrace.spark.parts import event_source
from tailrace.spark.planner import Planner

HELLO = {
    "ismaster": True, "isWritablePrimary": True, "setName": "rs0", "maxWireVersion": 13, "minWireVersion": 0,
    "maxBsonObjectSize": 16777216, "maxMessageSizeBytes": 48000000, "maxWriteBatchSize": 100000,
    "logicalSessionTimeoutMinutes": 30, "readOnly": False, "hosts": ["127.0.0.1:1"], "me": "127.0.0.1:1",
    "primary": "127.0.0.1:1",
}  # fmt: skip
BUILD = {"version": "5.0.0", "versionArray": [5, 0, 0, 0]}


class DocumentDb:
    """Change streams without post-batch tokens; `startAfter` and `$changeStreamSplitLargeEvent` are not known."""

    def __init__(self) -> None:
        self.enabled: list[dict[str, str]] = [{"database": "shop", "collection": ""}]
        self.events = [self.event(n) for n in range(1, 4)]
        self.has_lost_history = False
        self._cursors: dict[int, tuple[str, Timestamp]] = {}
        """Behind which token and from which time on each cursor gives."""

    @staticmethod
    def event(n: int) -> dict[str, Any]:
        seconds = 1_700_000_000 + n
        return {
            "_id": {"_data": f"01{seconds:08x}{1:08x}01{1:08x}00009025"},
            "clusterTime": Timestamp(seconds, 1),
            "documentKey": {"_id": n},
            "fullDocument": {"_id": n, "total": n * 10},
            "ns": {"db": "shop", "coll": "orders"},
            "operationType": "insert",
        }

    def __call__(self, command: dict[str, Any]) -> dict[str, Any]:
        if "getMore" in command:
            return self._more(command["getMore"])
        if "aggregate" not in command:
            raise Refusal(59, f"no such command: {next(iter(command))}")
        stage = command["pipeline"][0]
        if "$listChangeStreams" in stage:
            return {"cursor": {"id": 0, "ns": "admin.$cmd", "firstBatch": self.enabled}}
        if "$changeStream" not in stage:
            raise Refusal(304, f"not supported: {stage}")
        return self._open(stage["$changeStream"], command["pipeline"][1:])

    def _open(self, options: dict[str, Any], stages: list[dict[str, Any]]) -> dict[str, Any]:
        unknown = set(options) - {"fullDocument", "resumeAfter", "startAtOperationTime", "allChangesForCluster"}
        if unknown or any(next(iter(stage)) not in ("$match", "$project") for stage in stages):
            raise Refusal(72, f"not supported: {unknown or stages}")
        if self.has_lost_history:
            raise Refusal(136, "CollectionScan died due to position in capped collection being deleted")
        token = options.get("resumeAfter", {}).get("_data", "")
        since = options.get("startAtOperationTime", Timestamp(0, 0))
        cursor = len(self._cursors) + 1
        self._cursors[cursor] = token, since
        return {"cursor": {"id": cursor, "ns": "shop.orders", "firstBatch": []}}

    def _more(self, cursor: int) -> dict[str, Any]:
        time.sleep(0.02)
        token, since = self._cursors[cursor]
        batch = [e for e in self.events if e["_id"]["_data"] > token and e["clusterTime"] >= since][:2]
        if batch:
            self._cursors[cursor] = batch[-1]["_id"]["_data"], since
        return {"cursor": {"id": cursor, "ns": "shop.orders", "nextBatch": batch}}


@pytest.fixture
def documentdb():
    return DocumentDb()


@pytest.fixture
def server(documentdb):
    with ScriptedServer(documentdb, HELLO, BUILD) as server:
        yield server


def selection(**options: Any) -> Selection:
    return Selection(family="documentdb", max_await_ms=20, **options)


def read(server: ScriptedServer, start: Start, count: int, **options: Any) -> list[int]:
    with MongoClient(server.uri) as client:
        stream = make_source("change-stream", client, selection(**options)).open(start)
        found: list[int] = []
        for batch in stream.batches():
            found += [bson.decode(event)["documentKey"]["_id"] for event in batch.events]
            if len(found) >= count:
                break
        stream.close()
        return found


def namespaces(*names: str):
    from tailrace.capture.source.namespaces import Namespaces

    return Namespaces.parse(names)


def test_a_stream_begins_now_and_goes_on_by_resume_after(server, documentdb):
    with MongoClient(server.uri) as client:
        source = make_source("change-stream", client, selection(namespaces=namespaces("shop.orders")))
        token, at = source.now()
    assert at == server.operation_time
    assert read(server, Start(token), 3, namespaces=namespaces("shop.orders")) == [1, 2, 3]
    opened = [command["pipeline"][0] for command in server.commands if "aggregate" in command]
    assert opened[-1]["$changeStream"]["startAtOperationTime"] == server.operation_time
    second = bson.encode(documentdb.events[1]["_id"])
    assert read(server, Start(second), 1, namespaces=namespaces("shop.orders")) == [3]
    opened = [command["pipeline"][0] for command in server.commands if "aggregate" in command]
    assert "resumeAfter" in opened[-1]["$changeStream"]


def test_a_lost_position_is_told_by_its_own_code(server, documentdb):
    documentdb.has_lost_history = True
    with pytest.raises(HistoryLost):
        read(server, Start(bson.encode(documentdb.events[0]["_id"])), 1, namespaces=namespaces("shop.orders"))


def test_collections_have_to_be_switched_on(server, documentdb):
    documentdb.enabled = [{"database": "other", "collection": ""}]
    with pytest.raises(DeploymentUnsuitable, match=r"not switched on for shop\.orders") as raised:
        read(server, Start(), 1, namespaces=namespaces("shop.orders"))
    assert "modifyChangeStreams" in raised.value.hint
    with pytest.raises(DeploymentUnsuitable, match="the whole cluster"):
        read(server, Start(), 1)


def test_what_cannot_work_is_refused_by_name(server, tmp_path):
    with MongoClient(server.uri) as client:
        with pytest.raises(DeploymentUnsuitable, match="no oplog"):
            make_source("oplog", client, selection())
        before = make_source(
            "change-stream", client, selection(namespaces=namespaces("shop"), full_document_before_change="required")
        )
        with pytest.raises(DeploymentUnsuitable, match="before a change"):
            before.open(Start())
        with pytest.raises(DeploymentUnsuitable, match="needs heartbeats"):
            Capture.open(_settings(server, tmp_path, start="snapshot"), client)
    options = _replaced(SourceOptions.parse({"uri": server.uri, "startAtOperationTime": "1700000000"}))
    with pytest.raises(DeploymentUnsuitable, match="the place to begin at cannot be found"):
        event_source(options)
    served = CliRunner().invoke(app, ["serve", "--uri", server.uri], env={"TAILRACE_MONGODB__FAMILY": "documentdb"})
    assert "no oplog" in f"{served.output}{served.exception}"


def test_the_window_is_the_retention(server):
    with shard_readers([server.uri], 5.0, "documentdb", 24.0) as readers:
        oplog = readers[0].read()
    assert oplog.window_seconds == pytest.approx(24 * 3600, abs=1)
    assert oplog.last == server.operation_time


def test_produce_delivers_and_goes_on_behind_the_last_event(server, documentdb, tmp_path):
    settings = _settings(server, tmp_path, start="now")
    with MongoClient(server.uri) as client, Capture.open(settings, client) as capture:
        producer = capture.producer()
        running = threading.Thread(target=producer.run)
        running.start()
        deadline = time.monotonic() + 200
        while producer.delivered < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        producer.stop()
        running.join()
    assert len((tmp_path / "out").read_text().splitlines()) == 3
    stored = b"".join(file.read_bytes() for file in (tmp_path / "positions").rglob("*") if file.is_file())
    assert documentdb.events[-1]["_id"]["_data"].encode() in stored, "the token of the last event"


def test_spark_ends_its_batches_at_events(server, documentdb):
    """The planner of a streaming query, then a task that reads the range of the checkpoint again after a restart."""
    options = _replaced(SourceOptions.parse({"uri": server.uri, "namespaces": "shop.orders"}))
    planner = Planner(event_source(options), options)
    began = planner.latest()
    assert planner.parts(Offset(None), began) == []
    ends = [began]
    deadline = time.monotonic() + 30
    found: list[int] = []
    while len(found) < 3 and time.monotonic() < deadline:
        end = planner.latest()
        if end.key != ends[-1].key:
            found += _numbers(planner.parts(ends[-1], end), options)
            ends.append(end)
    planner.close()
    assert found == [1, 2, 3]
    assert ends[-1].to_bson() == bson.encode(documentdb.events[-1]["_id"])
    documentdb.events.append(documentdb.event(4))
    restarted = Planner(event_source(options), options)
    again = restarted.parts(ends[0], ends[-1])
    assert _numbers(again, options) == [1, 2, 3], "and nothing that came since"
    assert restarted.parts(ends[-1], ends[-1]) == []
    end = ends[-1]
    while end.key == ends[-1].key and time.monotonic() < deadline:
        end = restarted.latest()
    assert _numbers(restarted.parts(ends[-1], end), options) == [4]
    restarted.close()


def _numbers(parts: Sequence[Any], options: SourceOptions) -> list[int]:
    batches = [batch for part in parts for batch in part.batches(options)]
    return [bson.decode(event)["documentKey"]["_id"] for batch in batches for event in batch]


# --- watch


def watch(server: ScriptedServer, *arguments: str) -> Any:
    environment = {"TAILRACE_MONGODB__FAMILY": "documentdb"}
    return CliRunner().invoke(app, ["watch", "--uri", server.uri, *arguments], env=environment)


def test_watch_gives_events_and_resumes_behind_a_token(server, documentdb, tmp_path):
    token = tmp_path / "token"
    first = watch(server, "shop.orders", "--count", "2", "--save-token", str(token))
    assert first.exit_code == 0, first.output
    rest = watch(server, "shop.orders", "--count", "1", "--resume-after", str(token))
    assert rest.exit_code == 0, rest.output
    (event,) = [json.loads(line) for line in rest.stdout.splitlines() if line.startswith("{")]
    assert event["documentKey"] == {"_id": 3}


def test_watch_says_what_to_switch_on(server, documentdb):
    documentdb.enabled = []
    found = watch(server, "shop.orders", "--count", "1")
    assert found.exit_code != 0
    assert "not switched on for shop.orders" in f"{found.output}{found.exception}"


def test_watch_says_that_history_is_lost(server, documentdb, tmp_path):
    token = tmp_path / "token"
    assert watch(server, "shop.orders", "--count", "1", "--save-token", str(token)).exit_code == 0
    documentdb.has_lost_history = True
    found = watch(server, "shop.orders", "--count", "1", "--resume-after", str(token))
    assert isinstance(found.exception, HistoryLost)


def _replaced(options: SourceOptions) -> SourceOptions:
    from dataclasses import replace

    return replace(options, selection=replace(options.selection, family="documentdb"))


def _settings(server: ScriptedServer, tmp_path: Path, *, start: str) -> Settings:
    return Settings.load(
        flags={
            "mongodb.uri": server.uri,
            "mongodb.family": "documentdb",
            "capture.start": start,
            "capture.namespaces": ("shop.orders",),
            "capture.sink": f"file:{tmp_path / 'out'}",
            "capture.dead_letters": f"file:{tmp_path / 'letters'}",
            "capture.position_store": f"file:{tmp_path / 'positions'}",
        }
    )
