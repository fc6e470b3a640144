"""Azure Cosmos DB for MongoDB, by a scripted server that answers as its documentation says; no real one was asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.binary import Binary
from pymongo import MongoClient
from typer.testing import CliRunner

from scripted_server import Refusal, ScriptedServer
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.source.cosmosdb import CosmosDbSource
from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.source import Selection, Start
from tailrace.cli.app import app
from tailrace.errors import DeploymentUnsuitable, HistoryLost
from tailrace.families import Family, family_of
from tailrace.owned import OwnedThread
from tailrace.raw.cluster_time import ClusterTime
from tailrace.settings import Settings
from tailrace.spark.columns import ENVELOPE
from tailrace.spark.offset import Offset
from tailrace.spark.options import SourceOptions
from tailrace.spark.parts import event_source
from tailrace.spark.planner import Planner
from tailrace.spark.source import BatchReader

HELLO = {
    "ismaster": True, "msg": "isdbgrid", "maxWireVersion": 13, "minWireVersion": 0, "maxBsonObjectSize": 16777216,
    "maxMessageSizeBytes": 48000000, "maxWriteBatchSize": 1000, "logicalSessionTimeoutMinutes": 30,
}  # fmt: skip
BUILD = {"_t": "BuildInfoResponse", "version": "4.2.0", "versionArray": [4, 2, 0, 0]}
EVENTS = [
    {"_id": 1, "total": 5},
    {"_id": 1, "total": 6},
    {"_id": 1, "total": 6, "deleted": True},
]


class CosmosDb:
    """Takes one collection, the `$match` and `$project` of the documentation, and `updateLookup`.

    A stream without a token begins now; so that tests need not wait, the first three changes come behind that.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = list(EVENTS)
        self.keeps_last_alone = False
        """Whether it has forgotten all but the last change of each document, as it may."""
        self._cursors: dict[int, int] = {}

    def __call__(self, command: dict[str, Any]) -> dict[str, Any]:
        if "getMore" in command:
            time.sleep(0.02)
            cursor = command["getMore"]
            batch = list(self._behind(self._cursors[cursor]))[:2]
            self._cursors[cursor] = batch[-1][0] if batch else self._cursors[cursor]
            return {"cursor": {"id": cursor, "ns": "shop.orders", "nextBatch": [_event(*each) for each in batch]}}
        if not isinstance(command["aggregate"], str):
            raise Refusal(2, "Expected type string but found int.")
        stage, *others = command["pipeline"]
        if [next(iter(other)) for other in others] != ["$match", "$project"]:
            raise Refusal(2, "Change stream must be followed by a match and then a project stage")
        if stage["$changeStream"].get("fullDocument") != "updateLookup":
            raise Refusal(2, "fullDocument must be updateLookup")
        token = stage["$changeStream"].get("resumeAfter")
        cursor = len(self._cursors) + 1
        self._cursors[cursor] = 0 if token is None else int(json.loads(token["_data"])[0]["token"])
        return {"cursor": {"id": cursor, "ns": "shop.orders", "firstBatch": []}}

    def _behind(self, token: int) -> Iterator[tuple[int, dict[str, Any]]]:
        last = {document["_id"]: number for number, document in enumerate(self.events, 1)}
        for number, document in enumerate(self.events, 1):
            if number > token and (not self.keeps_last_alone or last[document["_id"]] == number):
                yield number, document


def _event(n: int, document: dict[str, Any]) -> dict[str, Any]:
    continuation = json.dumps([{"token": str(n), "range": {"min": "", "max": "FF"}}]).encode()
    return {
        "_id": {"_data": Binary(continuation), "_kind": 1},
        "fullDocument": document,
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": document["_id"]},
    }


@pytest.fixture
def cosmos():
    return CosmosDb()


@pytest.fixture
def server(cosmos):
    with ScriptedServer(cosmos, HELLO, BUILD) as server:
        yield server


def watch(server: ScriptedServer, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["watch", "--uri", server.uri, *arguments])


def test_it_is_found_by_what_it_says_of_itself(server):
    with MongoClient(server.uri) as client:
        assert family_of(client) is Family.COSMOSDB
    assert family_of(MongoClient("mongodb://a.mongo.cosmos.azure.com/", connect=False)) is Family.COSMOSDB
    assert family_of(MongoClient("mongodb://a.b.docdb.amazonaws.com/", connect=False)) is Family.DOCUMENTDB


def test_watch_gives_deletes_for_marked_documents(server, tmp_path):
    found = watch(server, "shop.orders", "--count", "3")
    assert found.exit_code == 0, found.output
    events = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]
    assert [event["operationType"] for event in events] == ["replace", "replace", "delete"]
    assert events[1]["fullDocument"] == {"_id": 1, "total": 6}
    assert "fullDocument" not in events[2]
    assert events[2]["documentKey"] == {"_id": 1}


def test_watch_resumes_by_continuation_token(server, tmp_path):
    token = tmp_path / "token"
    assert watch(server, "shop.orders", "--count", "2", "--save-token", str(token)).exit_code == 0
    found = watch(server, "shop.orders", "--count", "1", "--resume-after", str(token))
    assert found.exit_code == 0, found.output
    (event,) = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]
    assert event["operationType"] == "delete"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--all"], "collections alone"),
        (["shop"], "collections alone"),
        (["shop.orders", "--pipeline", '[{"$match": {}}]'], "no stages"),
        (["shop.orders", "--start-at", "1700000000"], "start_at_operation_time"),
        (["shop.orders", "--full-document", "required"], "updateLookup"),
    ],
)
def test_what_cannot_work_is_refused_by_name(server, arguments, reason):
    found = watch(server, *arguments)
    assert found.exit_code != 0
    assert reason in f"{found.output}{found.exception}"
    assert not [command for command in server.commands if "aggregate" in command]


# --- produce


def settings(server: ScriptedServer, tmp_path: Path, **flags: Any) -> Settings:
    return Settings.load(
        flags={
            "mongodb.uri": server.uri,
            "capture.start": "now",
            "capture.namespaces": ("shop.orders",),
            "capture.sink": f"file:{tmp_path / 'out'}",
            "capture.dead_letters": f"file:{tmp_path / 'letters'}",
            "capture.position_store": f"file:{tmp_path / 'positions'}",
            **{name.replace("__", "."): value for name, value in flags.items()},
        }
    )


def produce(server: ScriptedServer, chosen: Settings, count: int) -> None:
    """Run a producer until the stream has delivered so many events in all."""
    with MongoClient(server.uri) as client, Capture.open(chosen, client) as capture:
        producer = capture.producer()
        running = OwnedThread(producer.run, name="producer")
        running.start()
        deadline = time.monotonic() + 200
        while producer.delivered < count and time.monotonic() < deadline and running.is_alive:
            time.sleep(0.02)
        producer.stop()
        running.join()
        if running.error is not None:
            raise running.error
        assert producer.delivered == count


def records(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["value"] for line in (tmp_path / "out").read_text().splitlines()]


def test_produce_delivers_with_deletes_for_marked_documents(server, tmp_path):
    produce(server, settings(server, tmp_path), 3)
    found = records(tmp_path)
    assert [each["operationType"] for each in found] == ["replace", "replace", "delete"]
    times = [(each["clusterTime"]["$timestamp"]["t"], each["clusterTime"]["$timestamp"]["i"]) for each in found]
    assert times == sorted(set(times)), "each is later than the one before"
    assert found[0]["_id"]["_data"] < found[1]["_id"]["_data"] < found[2]["_id"]["_data"]


def test_produce_goes_on_behind_its_continuation_token(server, cosmos, tmp_path):
    chosen = settings(server, tmp_path)
    produce(server, chosen, 3)
    cosmos.events.append({"_id": 2, "total": 7})
    produce(server, chosen, 4)
    found = records(tmp_path)
    assert [each["documentKey"]["_id"] for each in found] == [1, 1, 1, 2]
    opened = [command["pipeline"][0]["$changeStream"] for command in server.commands if "aggregate" in command]
    assert json.loads(opened[-1]["resumeAfter"]["_data"])[0]["token"] == "3"
    assert found[3]["_id"]["_data"] > found[2]["_id"]["_data"], "also over a restart"


def test_another_field_may_mark_what_is_deleted(server, tmp_path):
    produce(server, settings(server, tmp_path, mongodb__soft_delete_field="gone"), 3)
    assert {each["operationType"] for each in records(tmp_path)} == {"replace"}


def test_a_clock_that_goes_back_moves_no_position_back(server):
    clock = iter([1_800_000_000.0, *[1_700_000_000.0] * 100])
    with MongoClient(server.uri) as client:
        source = CosmosDbSource(client, of_orders(), clock=lambda: next(clock))
        stream = source.open(Start(source.now()[0]))
        events = [event for _, batch in zip(range(4), stream.batches(), strict=False) for event in batch.events]
        stream.close()
    times = [ClusterTime.from_timestamp(bson.decode(event)["clusterTime"]) for event in events]
    assert len(times) == 3
    assert times == sorted(set(times))
    assert times[0].timestamp.time == 1_800_000_000


def test_a_position_without_a_token_is_no_position_after_a_restart(server):
    """Nothing was read before the end, and no beginning but now can be named: what came since may be lost."""
    with MongoClient(server.uri) as client:
        token, _ = CosmosDbSource(client, of_orders()).now()
        with pytest.raises(HistoryLost, match="given no token"):
            CosmosDbSource(client, of_orders()).open(Start(token))


def of_orders() -> Selection:
    return Selection(namespaces=Namespaces.parse(("shop.orders",)), max_await_ms=20)


# --- Spark


class Query:
    """Batches as Spark asks for them: first where each ends, then for its parts."""

    def __init__(self, server: ScriptedServer, **options: str) -> None:
        self.options = SourceOptions.parse({"uri": server.uri, "namespaces": "shop.orders", **options})
        self.planner = Planner(event_source(self.options), self.options)

    def begin(self) -> Offset:
        began = self.planner.latest()
        assert self.planner.parts(Offset(None), began) == []
        return began

    def next(self, start: Offset, count: int) -> tuple[Offset, list[dict[str, Any]]]:
        """Read batches until there are so many events."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + 200
        while len(found) < count:
            assert time.monotonic() < deadline
            end = self.planner.latest()
            if end.key != start.key:
                found += self.batch(start, end)
                start = end
        return start, found

    def batch(self, start: Offset, end: Offset) -> list[dict[str, Any]]:
        parts = self.planner.parts(start, end)
        return [bson.decode(event) for part in parts for batch in part.batches(self.options) for event in batch]

    def close(self) -> None:
        self.planner.close()


@pytest.fixture
def query(server):
    opened: list[Query] = []

    def start(**options: str) -> Query:
        opened.append(Query(server, **options))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_spark_ends_its_batches_at_events(cosmos, query):
    """Over a restart too, after which a task reads the range of the checkpoint again: the same events, at its times."""
    before = query()
    began = before.begin()
    end, found = before.next(began, 3)
    assert [each["operationType"] for each in found] == ["replace", "replace", "delete"]
    cosmos.events += [{"_id": 2, "total": 7}, {"_id": 3, "total": 8}]
    last, more = before.next(end, 2)
    before.close()
    cosmos.events.append({"_id": 4, "total": 9})

    restarted = query()
    again = restarted.batch(end, last)
    assert [each["fullDocument"] for each in again] == [each["fullDocument"] for each in more]
    assert all(found[-1]["clusterTime"] < each["clusterTime"] <= more[-1]["clusterTime"] for each in again)
    assert restarted.batch(last, last) == []
    _, rest = restarted.next(last, 1)
    assert [each["fullDocument"] for each in rest] == [{"_id": 4, "total": 9}]
    assert rest[0]["clusterTime"] > more[-1]["clusterTime"]


def test_spark_gives_a_range_whole_whose_end_does_not_come_again(cosmos, query, monkeypatch):
    """Nothing is lost: what has changed since comes as it is now, and again with the range behind."""
    monkeypatch.setattr("tailrace.spark.parts._SECONDS_WITHOUT_EVENTS", 0.3)
    before = query()
    end, found = before.next(before.begin(), 3)
    cosmos.events += [{"_id": number, "total": 1} for number in (2, 3)]
    last, _ = before.next(end, 2)
    before.close()
    cosmos.events += [{"_id": 3, "total": 2}, {"_id": 5, "total": 1}]
    cosmos.keeps_last_alone = True
    restarted = query()
    again = restarted.batch(end, last)
    assert [(each["documentKey"]["_id"], each["fullDocument"]["total"]) for each in again] == [(2, 1), (3, 2), (5, 1)]
    stop = last.token.cluster_time
    assert all(found[-1]["clusterTime"] < each["clusterTime"] <= stop for each in again), "before all that is behind it"
    _, rest = restarted.next(last, 2)
    assert [each["documentKey"]["_id"] for each in rest] == [3, 5]
    assert all(each["clusterTime"] > stop for each in rest)


def test_spark_marks_deletes_by_the_field_of_the_settings(query, tmp_path):
    file = tmp_path / "tailrace.toml"
    file.write_text('[mongodb]\nsoft_delete_field = "gone"\n')
    asked = query(settingsFile=str(file))
    _, found = asked.next(asked.begin(), 3)
    assert {each["operationType"] for each in found} == {"replace"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startAtOperationTime": "1700000000"}, "the place to begin at cannot be found"),
        ({"source": "oplog"}, "no oplog"),
        ({"namespaces": "shop"}, "collections alone"),
        ({"pipeline": '[{"$match": {}}]'}, "no stages"),
        ({"fullDocumentBeforeChange": "required"}, "full_document_before_change"),
        ({"snapshot": "true"}, "a snapshot cannot"),
    ],
)
def test_what_spark_cannot_do_is_refused_by_name(server, options, reason):
    def begin() -> None:
        if "snapshot" in options:
            parsed = SourceOptions.parse({"uri": server.uri, "namespaces": "shop.orders", **options})
            BatchReader(parsed, ENVELOPE).partitions()
        Query(server, **options).begin()

    with pytest.raises(DeploymentUnsuitable, match=reason):
        begin()
    assert not [command for command in server.commands if "aggregate" in command]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"capture__namespaces": ()}, "collections alone"),
        ({"capture__namespaces": ("shop",)}, "collections alone"),
        ({"capture__namespaces": ("shop.a", "shop.b")}, "collections alone"),
        ({"capture__start": "snapshot"}, "a snapshot cannot"),
        ({"capture__heartbeat_seconds": 5}, "heartbeats"),
        ({"capture__source": "oplog"}, "no oplog"),
    ],
)
def test_what_produce_cannot_do_is_refused_by_name(server, tmp_path, flags, reason):
    with MongoClient(server.uri) as client, pytest.raises(DeploymentUnsuitable, match=reason):
        Capture.open(settings(server, tmp_path, **flags), client)
    assert not [command for command in server.commands if "aggregate" in command]
