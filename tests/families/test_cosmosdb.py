"""Azure Cosmos DB for MongoDB, by a scripted server that answers as its documentation says; no real one was asked."""

from __future__ import annotations

import json
import time
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
from tailrace.spark.options import SourceOptions
from tailrace.spark.parts import event_source

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

    def __call__(self, command: dict[str, Any]) -> dict[str, Any]:
        if "getMore" in command:
            time.sleep(0.02)
            batch, self._left = self._left[:2], self._left[2:]
            return {"cursor": {"id": 9, "ns": "shop.orders", "nextBatch": batch}}
        if not isinstance(command["aggregate"], str):
            raise Refusal(2, "Expected type string but found int.")
        stage, *others = command["pipeline"]
        if [next(iter(other)) for other in others] != ["$match", "$project"]:
            raise Refusal(2, "Change stream must be followed by a match and then a project stage")
        if stage["$changeStream"].get("fullDocument") != "updateLookup":
            raise Refusal(2, "fullDocument must be updateLookup")
        token = stage["$changeStream"].get("resumeAfter")
        since = 0 if token is None else int(json.loads(token["_data"])[0]["token"])
        self._left = [_event(n, self.events[n - 1]) for n in range(since + 1, len(self.events) + 1)]
        return {"cursor": {"id": 9, "ns": "shop.orders", "firstBatch": []}}


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


def test_spark_is_refused_by_name(server):
    with pytest.raises(DeploymentUnsuitable, match="cannot be read twice alike") as raised:
        event_source(SourceOptions.parse({"uri": server.uri, "namespaces": "shop.orders"}))
    assert "tailrace produce" in raised.value.hint


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
