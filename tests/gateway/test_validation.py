"""What a server refuses, the gateway refuses in the same words, with and without authentication upstream."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import bson
import pytest
from bson import Binary, Int64, MaxKey, ObjectId, Regex, Timestamp
from pymongo.errors import CollectionInvalid, OperationFailure

from gateway.running_gateway import RunningGateway
from gateway.wire_client import WireClient
from tailrace.stand import ReplicaSet

ALL = ("4.2.6", "4.4.2", "5.0.4", "6.0.5", "6.0.27", pytest.param("7.0.28", marks=pytest.mark.long))
ODD: list[Any] = [
    -1, 1.5, 2**31, Int64(2**62), "1", None, True, [], {}, {"x": 1}, float("nan"), MaxKey(), ObjectId("5" * 24),
]  # fmt: skip
LSID = {"id": Binary(b"0" * 16, 4)}
OTHER = {"id": Binary(b"1" * 16, 4)}


def watch(**changes: Any) -> dict[str, Any]:
    """A command that opens a change stream, with some fields changed."""
    usual = {"aggregate": "orders", "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}, "$db": "valid"}
    return usual | changes


def stage(*stages: Any, **options: Any) -> dict[str, Any]:
    return watch(pipeline=[{"$changeStream": options}, *stages])


TOKEN = {"_data": "8262CAC2A8000000012B0229296E04"}
NAMES = ["", "a\0b", "$cmd", "system.profile", ".x", "x" * 300, "view", "series"]
DATABASES = ["", "a\0b", "a b", "x" * 64, "admin", "local", "config", "a.b", "a$b"]
SESSIONS = [LSID, {"id": "x"}, LSID | {"x": 1}, {"id": Binary(b"0" * 16, 3)}, {"id": Binary(b"0", 4)}]
LEVELS = ["local", "available", "majority", "linearizable", "snapshot", "x", 1]
CONCERNS = [
    *({"level": level} for level in LEVELS),
    {"level": "majority", "x": 1},
    {"level": "majority", "afterClusterTime": Timestamp(1, 1)},
]
PIPELINES = ["x", [1], [{}], [{"$changeStream": {}, "x": 1}], [{"$changeStream": 1}]]
OTHER_FIELDS = [
    "allowDiskUse", "bypassDocumentValidation", "hint", "comment", "writeConcern", "collation", "let", "explain",
    "exchange", "fromMongos", "needsMerge", "unknown", "batchSize", "$readPreference", "$clusterTime",
    "isMapReduceCommand", "runtimeConstants",
]  # fmt: skip
OPENS: list[dict[str, Any]] = [
    *(watch(aggregate=value) for value in [*ODD, *NAMES]),
    *(watch(**{"$db": value}) for value in DATABASES),
    *(watch(aggregate=1, **{"$db": value}) for value in ["valid", "admin", "local", "config"]),
    *(watch(cursor=value) for value in ODD),
    *(watch(cursor={"batchSize": value}) for value in ODD),
    watch(cursor={"batchSize": 0, "unknown": 1}),
    *(watch(pipeline=value) for value in [*ODD, *PIPELINES]),
    *(watch(maxTimeMS=value) for value in ODD),
    *(watch(lsid=value) for value in [*ODD, *SESSIONS]),
    *(watch(readConcern=value) for value in [*ODD, *CONCERNS]),
    *(watch(apiVersion=value) for value in [*ODD, "1", "2"]),
    *(watch(apiVersion="1", apiStrict=value) for value in [True, False, 1, "x", None]),
    watch(apiStrict=True),
    watch(apiVersion="1", apiStrict=True, pipeline=[{"$changeStream": {"showExpandedEvents": True}}]),
    *(watch(**{name: value}) for name in OTHER_FIELDS for value in [1, "x", {}, None, True]),
    watch(lsid=LSID, txnNumber=Int64(2)),
    watch(txnNumber=Int64(1)),
    watch(autocommit=False),
    *(stage({name: {}}) for name in ("$out", "$merge", "$group", "$sort", "$lookup", "$nonsense", "match")),
    *(stage({"$match": value}) for value in [1, {"x": Regex("(")}]),
    stage({"$project": {}}),
    stage(unknown=1),
    *(stage(fullDocument=value) for value in ["x", 1]),
    *(stage(resumeAfter=value) for value in [{}, {"_data": 1}, {"_data": "x"}, TOKEN]),
    stage(resumeAfter=TOKEN, startAfter=TOKEN),
    stage(startAtOperationTime=1),
]


MORES: list[dict[str, Any]] = [
    {},
    *({"batchSize": value} for value in [*ODD, 0, 1, 1.0]),
    *({"maxTimeMS": value} for value in [*ODD, 0, 1, 1.0]),
    *({"collection": value} for value in [*ODD, "", "other", "a\0b"]),
    *({"lsid": value} for value in [*ODD, *SESSIONS, OTHER]),
    *({"$readPreference": value} for value in [1, "x", [], {}, {"mode": "primary"}, {"mode": "x"}]),
    *({name: value} for name in ("unknown", "comment", "readConcern") for value in ODD),
    *({"apiVersion": value} for value in ["1", "2", 1]),
    {"apiVersion": "1", "apiStrict": True},
    {"txnNumber": Int64(1)},
    {"txnNumber": Int64(1), "lsid": LSID},
    {"autocommit": False},
]


def more(client: WireClient, fields: dict[str, Any], **opened_with: Any) -> dict[str, Any]:
    """Open a stream and read on in it; give the reply without what differs from cursor to cursor."""
    reply = client.command(watch(**opened_with))
    assert reply["ok"] == 1, reply
    opened = reply["cursor"]
    command = {"getMore": opened["id"], "collection": "orders", "maxTimeMS": 1, "$db": "valid"} | fields
    reply = client.command(command)
    client.command({"killCursors": "orders", "cursors": [opened["id"]], "$db": "valid"})
    if reply["ok"] == 1:
        return {"ok": 1, "ns": reply["cursor"]["ns"]}
    return reply | {"errmsg": reply["errmsg"].replace(str(opened["id"]), "ID")}


def outcome(client: WireClient, command: dict[str, Any]) -> dict[str, Any]:
    """The whole reply, and of a stream that was opened only that it was."""
    reply = client.command(command)
    if reply["ok"] == 1:
        opened = reply.get("cursor")
        if opened is None:
            return {"ok": 1}
        client.command(
            {"killCursors": opened["ns"].partition(".")[2], "cursors": [opened["id"]], "$db": command["$db"]}
        )
        return {"ok": 1, "ns": opened["ns"]}
    return reply


def differences(through: WireClient, direct: WireClient, commands: list[dict[str, Any]]) -> list[Any]:
    """The commands whose replies differ, with both."""
    found = []
    for command in commands:
        said, expected = outcome(through, command), outcome(direct, command)
        if said != expected:
            found.append((command, said, expected))
    return found


def prepare(mongodb: ReplicaSet) -> None:
    """Make a view, and where there is such a thing a time-series collection."""
    with mongodb.client() as client:
        for name, options in (
            ("orders", {}),
            ("view", {"viewOn": "orders"}),
            ("series", {"timeseries": {"timeField": "t"}}),
        ):
            try:
                client.valid.create_collection(name, **options)
            except (CollectionInvalid, OperationFailure):
                continue  # it is there, or this server has none


@pytest.mark.mongodb("4.2.6", "6.0.5")
def test_no_stream_is_opened_in_a_transaction(gateway: RunningGateway, mongodb: ReplicaSet) -> None:
    begin = {"txnNumber": Int64(1), "autocommit": False, "startTransaction": True}
    with WireClient(gateway.port) as through, WireClient(mongodb.primary.port) as direct:
        refused = [
            client.command(watch(lsid={"id": Binary.from_uuid(uuid4())}, **begin)) for client in (through, direct)
        ]
    assert refused[0] == refused[1]
    assert refused[0]["code"] == 263


def test_many_who_open_the_same_ask_the_server_a_few_times(gateway: RunningGateway, mongodb: ReplicaSet) -> None:
    """Each answer is newer than the question, so that nobody is told what was true before."""
    with mongodb.client() as client:
        client.valid.drop_collection("asked")
        before = client.admin.command("serverStatus")["metrics"]
        clients = [WireClient(gateway.port) for _ in range(40)]
        for each in clients:
            each.send_frame(b"\x00" * 5 + bson.encode(watch(aggregate="asked", lsid={"id": Binary.from_uuid(uuid4())})))
        assert all(each.reply()["ok"] == 1 for each in clients)
        after = client.admin.command("serverStatus")["metrics"]
        assert 1 <= after["commands"]["aggregate"]["total"] - before["commands"]["aggregate"]["total"] < 40
        assert after["cursor"]["open"]["total"] - before["cursor"]["open"]["total"] < 10
        client.valid.create_collection("asked", viewOn="orders")
        refused = clients[0].command(watch(aggregate="asked"))
        client.valid.drop_collection("asked")
        for each in clients:
            each.socket.close()
    assert refused["code"] == 166


@pytest.mark.mongodb("4.2.6", "6.0.5")
def test_a_token_that_is_not_found_is_told_with_the_aggregate(gateway: RunningGateway, mongodb: ReplicaSet) -> None:
    with mongodb.client() as client, client.valid.token.watch() as stream:
        client.valid.token.insert_many([{}, {}, {}])
        token = next(stream)["_id"]
        client.valid.other.insert_one({})
    resume = watch(aggregate="other", pipeline=[{"$changeStream": {"resumeAfter": token}}], cursor={})
    with WireClient(gateway.port) as through, WireClient(mongodb.primary.port) as direct:
        refused = through.command(resume)
        assert _without_words(refused) == _without_words(direct.command(resume))
        assert refused["code"] in (280, 40585)
        later = through.command(resume | {"cursor": {"batchSize": 0}})
        assert later["ok"] == 1
        found = resume | {"aggregate": "token"}
        first = [client.command(found)["cursor"]["firstBatch"] for client in (through, direct)]
        assert first[0] == first[1]
        assert len(first[0]) == 2


def _without_words(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name != "errmsg"}


@pytest.mark.mongodb(*ALL)
def test_a_stream_is_refused_as_by_the_server(gateway: RunningGateway, mongodb: ReplicaSet) -> None:
    prepare(mongodb)
    with WireClient(gateway.port) as through, WireClient(mongodb.primary.port) as direct:
        assert differences(through, direct, OPENS) == []


@pytest.mark.mongodb(*ALL)
def test_a_get_more_is_refused_as_by_the_server(gateway: RunningGateway, mongodb: ReplicaSet) -> None:
    prepare(mongodb)
    with WireClient(gateway.port) as through, WireClient(mongodb.primary.port) as direct:
        openings: list[dict[str, Any]] = [{}, {"lsid": LSID}]
        if mongodb.release >= (5, 0):
            openings.append({"apiVersion": "1"})
        found = [
            (opening, fields, said, expected)
            for opening in openings
            for fields in MORES
            if (said := more(through, fields, **opening)) != (expected := more(direct, fields, **opening))
        ]
        assert found == []


def refused_in_use(port: int) -> dict[str, Any]:
    """Let two clients read on in one cursor at once until either is refused: who comes second is chance."""
    with WireClient(port) as first, WireClient(port) as second:
        number = first.command(watch())["cursor"]["id"]
        waits = {"getMore": number, "collection": "orders", "maxTimeMS": 500, "$db": "valid"}
        for _ in range(60):
            for client in (first, second):
                client.send_frame(b"\x00" * 5 + bson.encode(waits))
            for reply in (first.reply(), second.reply()):
                if reply["ok"] != 1:
                    return reply | {"errmsg": reply["errmsg"].replace(str(number), "ID")}
    pytest.fail("two clients read on in one cursor at once, and neither was refused")


@pytest.mark.mongodb("4.2.6", "6.0.5")
def test_a_cursor_in_use_is_refused_as_by_the_server(gateway: RunningGateway, mongodb: ReplicaSet) -> None:
    refused = [refused_in_use(port) for port in (gateway.port, mongodb.primary.port)]
    assert refused[0] == refused[1]
    assert refused[0]["code"] == 143


@pytest.mark.mongodb(*ALL)
def test_legacy_queries_are_answered_as_by_the_server(gateway: RunningGateway, mongodb: ReplicaSet) -> None:
    with WireClient(gateway.port) as through, WireClient(mongodb.primary.port) as direct:
        for command in ({"ping": 1}, {"find": "nothing"}, {"buildInfo": 1}, {"unknown": 1}, {"saslStart": 1}, {}):
            assert through.query("admin.$cmd", command) == direct.query("admin.$cmd", command)
        assert through.query("admin.$cmd", {"isMaster": 1})["ok"] == 1
