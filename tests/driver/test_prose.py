"""The specification's prose tests, by number, against real servers; a scripted one for versions nobody has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import Timestamp
from pymongo import common
from pymongo.errors import OperationFailure
from pymongo.read_preferences import ReadPreference

from driver.scripted_server import ScriptedServer
from driver.shells import Recorder, Shell
from tailrace.errors import ResumeTokenMissing
from tailrace.stand import ReplicaSet

VERSIONS = ("4.2.6", "4.4.2", "5.0.4", "6.0.5", "6.0.27", pytest.param("7.0.28", marks=pytest.mark.long))
Connect = Callable[..., tuple[Any, Recorder]]
CLOSE_GET_MORE = {"failCommands": ["getMore"], "closeConnection": True}


@pytest.fixture
def orders(mongodb: ReplicaSet, database: Any) -> Any:
    """A collection to write to, with pymongo."""
    database.create_collection("orders")
    return database.orders


@pytest.fixture
def start_scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ScriptedServer]]:
    """Start scripted servers, also of wire versions that pymongo itself no longer accepts."""
    monkeypatch.setattr(common, "MIN_SUPPORTED_WIRE_VERSION", 6)
    running = []

    def start(answer: Any, wire_version: int) -> ScriptedServer:
        running.append(ScriptedServer(answer, wire_version=wire_version))
        return running[-1]

    yield start
    for server in running:
        server.close()


def watched(client: Any, orders: Any) -> Any:
    return client[orders.database.name][orders.name]


def batch(name: str, events: list[dict[str, Any]], **cursor: Any) -> dict[str, Any]:
    return {"ok": 1, "cursor": {"id": 7, "ns": "a.b", name: events, **cursor}, "operationTime": Timestamp(5, 1)}


@pytest.mark.mongodb(*VERSIONS)
def test_1_the_last_seen_token_is_tracked(mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect) -> None:
    client, recorder = connect(mongodb.uri)
    with shell.watch(watched(client, orders), batch_size=10) as stream:
        orders.insert_many([{} for _ in range(3)])
        tokens = []
        for _ in range(3):
            event = stream.next()
            tokens.append((event["_id"], stream.resume_token))
    # Every event's own token, but for the last of a batch the post-batch token.
    last_of_batch = recorder.replies[-1 if recorder.replies[-1].command_name == "getMore" else -2].reply["cursor"]
    for identity, token in tokens[:-1]:
        assert token == identity
    assert tokens[-1][1] in (tokens[-1][0], dict(last_of_batch["postBatchResumeToken"]))


@pytest.mark.mongodb("4.2.6", "6.0.27")
def test_2_a_missing_token_is_the_servers_error(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, _ = connect(mongodb.uri)
    with shell.watch(watched(client, orders), [{"$project": {"_id": 0}}]) as stream:
        orders.insert_one({})
        with pytest.raises(OperationFailure) as caught:
            stream.next()
        assert caught.value.code == 280
        assert not stream.alive


def test_2_a_missing_token_is_the_drivers_error_before_4_2(
    start_scripted: Callable[..., ScriptedServer], shell: Shell, connect: Connect
) -> None:
    server = start_scripted(lambda _: batch("firstBatch", [{"operationType": "insert"}]), 7)
    client, _ = connect(server.uri)
    stream = shell.watch(client.a.b)
    with pytest.raises(
        ResumeTokenMissing, match="Cannot provide resume functionality when the resume token is missing"
    ):
        stream.next()
    assert not stream.alive
    stream.close()


@pytest.mark.mongodb(*VERSIONS)
def test_3_one_resume_with_the_same_pipeline_and_options(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, recorder = connect(mongodb.uri)
    pipeline = [{"$match": {"operationType": "insert"}}]
    with shell.watch(watched(client, orders), pipeline, full_document="updateLookup", batch_size=5) as stream:
        orders.insert_one({"n": 1})
        stream.next()
        token = stream.resume_token
        with mongodb.primary.fail_point("failCommand", {"times": 1}, shell.only_for(CLOSE_GET_MORE)):
            orders.insert_one({"n": 2})
            assert stream.next()["fullDocument"]["n"] == 2
    first, second = recorder.of("aggregate")
    assert second["pipeline"][1:] == first["pipeline"][1:] == pipeline
    assert first["cursor"] == second["cursor"] == {"batchSize": 5}
    assert dict(second["pipeline"][0]["$changeStream"].pop("resumeAfter")) == token
    assert second["pipeline"][0] == first["pipeline"][0]
    assert first["lsid"] == second["lsid"], "a resume uses the session of the attempt before"


@pytest.mark.mongodb("4.2.6", "6.0.5")
def test_4_no_resume_after_an_error_of_aggregate(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, recorder = connect(mongodb.uri, retryReads=False)
    labelled = {"failCommands": ["aggregate"], "errorCode": 6, "errorLabels": ["ResumableChangeStreamError"]}
    with (
        mongodb.primary.fail_point("failCommand", {"times": 1}, shell.only_for(labelled)),
        pytest.raises(OperationFailure) as caught,
    ):
        shell.watch(watched(client, orders))
    assert caught.value.code == 6
    assert len(recorder.of("aggregate")) == 1


def test_6_server_selection_with_the_first_read_preference(
    start_mongodb: Callable[..., ReplicaSet], shell: Shell, connect: Connect
) -> None:
    with_secondary = start_mongodb("6.0.5", nodes=2, priorities=[1, 0])
    client, recorder = connect(with_secondary.uri)
    secondary = with_secondary.secondaries[0]
    with (
        with_secondary.client() as writer,
        shell.watch(client.shop.orders, read_preference=ReadPreference.SECONDARY) as stream,
    ):
        writer.shop.orders.insert_one({"n": 1})
        assert stream.next()["fullDocument"]["n"] == 1
        with secondary.fail_point("failCommand", {"times": 1}, shell.only_for(CLOSE_GET_MORE)):
            writer.shop.orders.insert_one({"n": 2})
            assert stream.next()["fullDocument"]["n"] == 2
    sent = [event for event in recorder.commands if event.command_name in ("aggregate", "getMore")]
    assert {event.connection_id[1] for event in sent} == {secondary.port}
    assert [event.command["$readPreference"]["mode"] for event in sent if event.command_name == "aggregate"] == [
        "secondary",
        "secondary",
    ]


@pytest.mark.mongodb("4.2.6", "6.0.27")
def test_7_a_cursor_with_an_empty_first_batch_stays_open(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, recorder = connect(mongodb.uri)
    with shell.watch(watched(client, orders), max_await_time_ms=50) as stream:
        assert recorder.replies[-1].reply["cursor"]["id"]
        assert stream.try_next() is None
        assert stream.alive
        assert not recorder.of("killCursors")


@pytest.mark.mongodb(*VERSIONS)
def test_8_errors_of_killcursors_are_swallowed(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, recorder = connect(mongodb.uri)
    with shell.watch(watched(client, orders)) as stream:
        orders.insert_one({"n": 1})
        stream.next()
        # An error of the server, after which the cursor is killed; and that fails too.
        with mongodb.primary.fail_point(
            "failCommand",
            {"times": 2},
            shell.only_for(
                {
                    "failCommands": ["getMore", "killCursors"],
                    "errorCode": 6,
                    "errorLabels": ["ResumableChangeStreamError"],
                }
            ),
        ):
            orders.insert_one({"n": 2})
            assert stream.next()["fullDocument"]["n"] == 2
    assert len(recorder.of("aggregate")) == 2
    assert [event.command_name for event in recorder.failures] == ["getMore", "killCursors"]


def test_9_before_4_0_7_a_stream_without_results_resumes_at_the_time_it_began(
    start_scripted: Callable[..., ScriptedServer], shell: Shell, connect: Connect
) -> None:
    def answer(command: dict[str, Any]) -> Any:
        if "aggregate" in command:
            return batch("firstBatch", [])
        first = len(server.of("getMore")) == 1
        return None if first else batch("nextBatch", [{"_id": {"t": 1}, "n": 1}])

    server = start_scripted(answer, 7)
    client, _ = connect(server.uri)
    with shell.watch(client.a.b) as stream:
        assert stream.next()["n"] == 1
        assert stream.resume_token == {"t": 1}
    stages = [command["pipeline"][0]["$changeStream"] for command in server.of("aggregate")]
    assert stages == [{}, {"startAtOperationTime": Timestamp(5, 1)}]


@pytest.mark.mongodb(*VERSIONS)
def test_11_after_the_batch_the_token_is_the_post_batch_token(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, recorder = connect(mongodb.uri)
    with shell.watch(watched(client, orders), max_await_time_ms=50) as stream:
        assert stream.resume_token == _post_batch_token(recorder)  # the empty batch of the aggregate
        orders.insert_one({})
        stream.next()
        assert stream.resume_token == _post_batch_token(recorder)  # the last document of a batch
        orders.database.other.insert_one({})
        assert stream.try_next() is None
        assert stream.resume_token == _post_batch_token(recorder)  # an empty batch of a getMore


def _post_batch_token(recorder: Recorder) -> dict[str, Any]:
    replies = [event.reply for event in recorder.replies if event.command_name in ("aggregate", "getMore")]
    return dict(replies[-1]["cursor"]["postBatchResumeToken"])


@pytest.mark.parametrize("start", [{}, {"resume_after": {"t": 0}}])
def test_12_without_post_batch_tokens_it_is_the_last_document_or_where_it_began(
    start: dict[str, Any], start_scripted: Callable[..., ScriptedServer], shell: Shell, connect: Connect
) -> None:
    answers = iter([batch("firstBatch", []), batch("nextBatch", []), batch("nextBatch", [{"_id": {"t": 1}}])])
    server = start_scripted(lambda _: next(answers), 7)
    client, _ = connect(server.uri)
    with shell.watch(client.a.b, **start) as stream:
        assert stream.resume_token == start.get("resume_after")
        assert stream.try_next() is None
        assert stream.resume_token == start.get("resume_after")
        stream.next()
        assert stream.resume_token == {"t": 1}


@pytest.mark.mongodb(*VERSIONS)
def test_13_inside_a_batch_the_token_is_the_last_documents(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, _ = connect(mongodb.uri)
    with shell.watch(watched(client, orders)) as stream:
        before = stream.resume_token
        orders.insert_many([{} for _ in range(3)])
        first = stream.next()["_id"]
    with shell.watch(watched(client, orders), resume_after=before) as stream:
        assert stream.next()["_id"] == first
        assert stream.resume_token == first
        second = stream.next()["_id"]
        assert stream.resume_token == second


@pytest.mark.mongodb(*VERSIONS)
@pytest.mark.parametrize("option", ["start_after", "resume_after", None])
def test_14_before_the_first_document_the_token_is_where_the_stream_began(
    option: str | None, mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, recorder = connect(mongodb.uri)
    with shell.watch(watched(client, orders)) as stream:
        orders.insert_many([{} for _ in range(3)])
        first = stream.next()
    start = {"start_at_operation_time": first["clusterTime"]} if option is None else {option: first["_id"]}
    with shell.watch(watched(client, orders), **start) as stream:
        assert recorder.replies[-1].reply["cursor"]["firstBatch"]
        assert stream.resume_token == (None if option is None else first["_id"])


@pytest.mark.mongodb(*VERSIONS)
def test_17_started_with_start_after_and_no_result_it_resumes_with_start_after(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, recorder = connect(mongodb.uri)
    with shell.watch(watched(client, orders)) as stream:
        orders.insert_one({})
        token = stream.next()["_id"]
    with (
        mongodb.primary.fail_point("failCommand", {"times": 1}, shell.only_for(CLOSE_GET_MORE)),
        shell.watch(watched(client, orders), start_after=token, max_await_time_ms=50) as stream,
    ):
        assert stream.try_next() is None
    resumed = recorder.stages()[-1]
    assert "startAfter" in resumed
    assert "resumeAfter" not in resumed


@pytest.mark.mongodb(*VERSIONS)
def test_18_started_with_start_after_and_a_result_it_resumes_with_resume_after(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, recorder = connect(mongodb.uri)
    with shell.watch(watched(client, orders)) as stream:
        orders.insert_one({})
        token = stream.next()["_id"]
        orders.insert_one({"n": 2})
    with shell.watch(watched(client, orders), start_after=token, max_await_time_ms=50) as stream:
        assert stream.next()["fullDocument"]["n"] == 2
        with mongodb.primary.fail_point("failCommand", {"times": 1}, shell.only_for(CLOSE_GET_MORE)):
            assert stream.try_next() is None
    resumed = recorder.stages()[-1]
    assert "resumeAfter" in resumed
    assert "startAfter" not in resumed


@pytest.mark.mongodb("6.0.27")
def test_19_large_events_are_split(mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect) -> None:
    large = _with_images(orders)
    client, _ = connect(mongodb.uri)
    pipeline = [{"$changeStreamSplitLargeEvent": {}}]
    with shell.watch(watched(client, large), pipeline, full_document_before_change="required") as stream:
        large.update_one({}, {"$set": {"value": "z" * (10 << 20)}})
        fragments = [stream.next()["splitEvent"] for _ in range(2)]
    assert fragments == [{"fragment": 1, "of": 2}, {"fragment": 2, "of": 2}]


@pytest.mark.mongodb("6.0.27")
def test_19_fragments_are_put_together_when_asked_to(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    large = _with_images(orders)
    client, _ = connect(mongodb.uri)
    options: dict[str, Any] = {"full_document_before_change": "required", "split_large_events": True}
    with shell.watch(watched(client, large), batch_size=1, **options) as stream:
        large.update_one({}, {"$set": {"value": "z" * (10 << 20)}})
        large.update_one({}, {"$set": {"small": 1}})
        before = stream.resume_token
        assert stream.try_next() is None, "the first batch has the first fragment alone"
        assert stream.resume_token == before, "the position stays before an event that is not whole"
        event = stream.next()
        token = stream.resume_token
        following = stream.next()
    assert "splitEvent" not in event
    assert event["operationType"] == "update"
    assert event["updateDescription"]["updatedFields"]["value"] == "z" * (10 << 20)
    assert event["fullDocumentBeforeChange"]["value"] == "q" * (10 << 20)
    assert following["updateDescription"]["updatedFields"] == {"small": 1}
    with shell.watch(watched(client, large), resume_after=token, **options) as stream:
        assert stream.next()["_id"] == following["_id"]


@pytest.mark.mongodb("6.0.5")
def test_large_events_are_not_asked_to_be_split_where_the_server_cannot(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, recorder = connect(mongodb.uri)
    with shell.watch(watched(client, orders), split_large_events=True) as stream:
        orders.insert_one({"n": 1})
        assert stream.next()["fullDocument"]["n"] == 1
    assert recorder.of("aggregate")[0]["pipeline"] == [{"$changeStream": {}}]


def _with_images(orders: Any) -> Any:
    database = orders.database
    database.create_collection("large", changeStreamPreAndPostImages={"enabled": True})
    database.large.insert_one({"value": "q" * (10 << 20)})
    return database.large
