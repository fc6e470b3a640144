"""Whole streams: what is shown, batches, positions, errors."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from engine.small_oplog import (
    OTHER_UUID,
    command,
    entry,
    events_of,
    insert,
    open_small,
    operation,
    shard_of,
    transaction,
    types_of,
)
from tailrace.engine import Dialect, open_stream, parse_command
from tailrace.engine.recording import RecordedOplog
from tailrace.engine.transform import Transform
from tailrace.errors import EventTooLarge, OplogEntryInvalid, PipelineFailed, ServerUnreachable, StreamFatal
from tailrace.token.resume_token import ResumeToken

pytestmark = pytest.mark.usefixtures("implementation")


def mark(i: int, version: int = 1) -> ResumeToken:
    return ResumeToken.high_water_mark(Timestamp(100, i), version)


# --- what is shown


def test_a_transaction_shows_as_its_operations() -> None:
    log = transaction(1, [operation(1), operation("x", "shop.other"), operation(2)])
    events = events_of(open_small(log))
    assert [event["documentKey"]["_id"] for event in events] == [1, 2]
    assert [list(event)[:3] for event in events] == [["txnNumber", "lsid", "_id"]] * 2
    assert {event["clusterTime"] for event in events} == {Timestamp(100, 1)}


def test_what_a_migration_wrote_is_shown_on_demand() -> None:
    log = insert(1, 1, fromMigrate=True)
    assert types_of(open_small(log)) == []
    assert types_of(open_small(log, showMigrationEvents=True)) == ["insert"]


def test_wall_time_and_truncated_arrays_come_with_their_servers() -> None:
    update = entry(1, "u", "shop.orders", {"$v": 2, "diff": {"u": {"a": 1}}}, o2={"_id": 1})
    assert "wallTime" in events_of(open_small(update, version="6.0.5"))[0]
    assert "wallTime" not in events_of(open_small(update, version="5.0.4"))[0]
    [event] = events_of(open_small(update))
    assert list(event["updateDescription"]) == ["updatedFields", "removedFields", "truncatedArrays"]


def test_inserts_of_servers_that_log_no_key_get_their_id() -> None:
    log = entry(1, "i", "shop.orders", {"a": 1, "_id": 5})
    assert events_of(open_small(log, version="4.2.6"))[0]["documentKey"] == {"_id": 5}


EXPANDED = (
    command(1, "shop", {"create": "orders", "capped": True}),
    command(2, "shop", {"createIndexes": "orders", "v": 2, "key": {"a": 1}, "name": "a_1"}),
    command(3, "shop", {"collMod": "orders", "validator": {}}, o2={"collectionOptions_old": {"x": 1}}),
    command(4, "shop", {"dropIndexes": "orders", "index": "a_1"}, o2={"name": "a_1"}),
    entry(5, "n", "shop.orders", {}, o2={"shardCollection": "shop.orders", "shardKey": {"a": 1}}),
)


def test_expanded_events_are_shown_on_demand() -> None:
    assert types_of(open_small(*EXPANDED)) == []
    events = events_of(open_small(*EXPANDED, showExpandedEvents=True))
    assert [(event["operationType"], event["operationDescription"]) for event in events] == [
        ("create", {"capped": True}),
        ("createIndexes", {"indexes": [{"v": 2, "key": {"a": 1}, "name": "a_1"}]}),
        ("modify", {"validator": {}}),
        ("dropIndexes", {"indexes": [{"name": "a_1"}]}),
        ("shardCollection", {"shardKey": {"a": 1}}),
    ]
    assert events[2]["stateBeforeChange"] == {"collectionOptions": {"x": 1}}


def test_a_rename_begins_with_its_target_and_ends_both_streams() -> None:
    log = command(1, "shop", {"renameCollection": "shop.orders", "to": "shop.old", "stayTemp": False})
    [rename, invalidate] = events_of(open_small(log))
    assert next(iter(rename.items())) == ("to", {"db": "shop", "coll": "old"})
    assert list(invalidate) == ["_id", "operationType", "clusterTime", "wallTime"]
    assert types_of(open_small(log, collection="old")) == ["rename", "invalidate"]
    assert types_of(open_small(log, collection=None)) == ["rename"]


def test_dropping_a_database_ends_its_stream_but_not_the_clusters() -> None:
    log = command(1, "shop", {"dropDatabase": 1}, ui=None)
    assert types_of(open_small(log)) == []
    assert types_of(open_small(log, collection=None)) == ["dropDatabase", "invalidate"]
    cluster = open_small(log, database="admin", collection=None, allChangesForCluster=True)
    assert types_of(cluster) == ["dropDatabase"]
    assert not cluster.is_closed


def test_views_are_shown_as_views() -> None:
    log = (
        entry(1, "i", "shop.system.views", {"_id": "shop.v", "viewOn": "orders", "pipeline": []}),
        entry(2, "d", "shop.system.views", {"_id": "shop.v"}),
        insert(3, 1, "shop.x.system.views"),
    )
    events = events_of(open_small(*log, collection=None, showExpandedEvents=True))
    assert [(event["operationType"], event["ns"]["coll"]) for event in events] == [
        ("create", "v"),
        ("drop", "v"),
        ("insert", "x.system.views"),
    ]
    assert "collectionUUID" not in events[0]


def test_topology_changes_are_for_routers() -> None:
    log = entry(1, "n", "shop.orders", {}, o2={"type": "migrateChunkToNewShard", "from": "a", "to": "b"})
    router = {"fromMongos": True, "needsMerge": True}
    assert types_of(open_small(log)) == []
    [event] = events_of(open_small(log, command_fields=router))
    assert (event["operationType"], event["$sortKey"]) == ("kNewShardDetected", [event["_id"]])
    [older] = events_of(open_small(log, version="4.2.6", command_fields=router))
    assert older["$sortKey"] == older["_id"]


@pytest.mark.parametrize(("version", "is_closed"), [("4.2.6", False), ("5.0.4", False), ("6.0.5", True)])
@pytest.mark.parametrize(
    ("collection", "ending"),
    [("orders", {"drop": "orders"}), (None, {"dropDatabase": 1})],
    ids=["drop", "dropDatabase"],
)
def test_before_6_0_a_router_closes_the_streams_of_its_shards(
    version: str, is_closed: bool, collection: str | None, ending: dict[str, object]
) -> None:
    """So says each of them when it is asked with `fromMongos` and `needsMerge`."""
    log = insert(1, 1), command(2, "shop", ending), insert(3, 2)
    router = {"fromMongos": True, "needsMerge": True}
    stream = open_small(*log, version=version, collection=collection, command_fields=router)
    types = ["insert", next(iter(ending)), "invalidate"]
    assert types_of(stream) == (types if is_closed else [*types, "insert"])
    assert stream.is_closed == is_closed
    assert types_of(open_small(*log, version=version, collection=collection)) == types


BATCH = entry(1, "c", "admin.$cmd", {"applyOps": [operation(1), operation("x", "shop.other"), operation(2)]}, ui=None)


def test_writes_that_7_0_logs_together_are_shown_without_a_transaction() -> None:
    """A multi-delete, for one; the same entry of an older server was a client's own command, and shows as nothing."""
    events = events_of(open_small(BATCH, version="7.0.28"))
    assert [event["documentKey"]["_id"] for event in events] == [1, 2]
    assert {next(iter(event)) for event in events} == {"_id"}
    assert [ResumeToken.parse(event["_id"]).decode().txn_op_index for event in events] == [0, 2]
    assert events_of(open_small(BATCH, version="6.0.27")) == []


INDEX_BUILD = (
    command(1, "shop", {"startIndexBuild": "orders", "indexes": [{"v": 2, "key": {"a": 1}, "name": "a_1"}]}),
    command(2, "shop", {"abortIndexBuild": "orders", "indexes": [{"v": 2, "key": {"a": 1}, "name": "a_1"}]}),
)


def test_the_start_of_an_index_build_is_a_system_event_of_7_0() -> None:
    system = {"showExpandedEvents": True, "showSystemEvents": True}
    [event] = events_of(open_small(*INDEX_BUILD, version="7.0.28", **system))
    assert event["operationType"] == "startIndexBuild"
    assert event["operationDescription"] == {"indexes": [{"v": 2, "key": {"a": 1}, "name": "a_1"}]}
    assert types_of(open_small(*INDEX_BUILD, version="7.0.28", showExpandedEvents=True)) == []
    assert types_of(open_small(*INDEX_BUILD, version="7.0.28", showSystemEvents=True)) == []
    assert types_of(open_small(*INDEX_BUILD, version="6.0.27", **system)) == []


def test_7_0_names_a_new_shard_as_it_names_other_events() -> None:
    """Seen on a cluster of 7.0.28: for routers only, with a namespace, and a description among the expanded events."""
    note = {"migrateChunkToNewShard": "shop.orders", "fromShardId": "s0", "toShardId": "s1"}
    log = entry(1, "n", "shop.orders", {}, o2=note)
    router = {"fromMongos": True, "needsMerge": True}
    assert types_of(open_small(log, version="7.0.28", showExpandedEvents=True)) == []
    [event] = events_of(open_small(log, version="7.0.28", command_fields=router))
    assert (event["operationType"], event["ns"]) == ("migrateChunkToNewShard", {"db": "shop", "coll": "orders"})
    described = {
        "operationType": "migrateChunkToNewShard",
        "operationDescription": {"fromShardId": "s0", "toShardId": "s1"},
    }
    assert bson.decode(ResumeToken.parse(event["_id"]).decode().event_identifier or b"") == described
    assert "operationDescription" not in event
    [expanded] = events_of(open_small(log, version="7.0.28", command_fields=router, showExpandedEvents=True))
    assert expanded["operationDescription"] == described["operationDescription"]


# --- batches and positions


def test_a_full_batch_ends_at_its_last_event() -> None:
    stream = open_small(insert(1, 1), insert(2, 2), insert(3, 3, "shop.other"))
    [event] = stream.next_batch(1)
    assert stream.post_batch_resume_token.to_bson() == event.token
    stream.next_batch(10)
    assert stream.post_batch_resume_token == mark(3)


def test_a_position_never_goes_back() -> None:
    stream = open_small(insert(1, 1), insert(2, 2))
    batch = stream.next_batch()
    for _ in range(2):
        assert stream.post_batch_resume_token.to_bson() == batch[-1].token
        assert stream.next_batch() == []


def test_a_quiet_stream_advances_with_the_oplog() -> None:
    shard = shard_of(insert(1, 1, "shop.other"), insert(2, 2, "shop.other"), insert(3, 1))
    oplog = RecordedOplog(shard, visible=(100 << 32) + 1)
    dialect = Dialect.of("6.0.5")
    command = {"aggregate": "orders", "pipeline": [{"$changeStream": {}}], "cursor": {}}
    stream = open_stream(parse_command(command, "shop", dialect), oplog, dialect, latest=(100 << 32) + 1)
    assert stream.post_batch_resume_token == mark(2), "begins behind the newest entry"
    assert stream.next_batch() == []
    assert stream.post_batch_resume_token == mark(2)
    oplog.visible = (100 << 32) + 3
    assert [event.cluster_time & 0xFF for event in stream.next_batch()] == [3]


def test_batches_are_bounded_in_bytes_and_nothing_is_lost() -> None:
    log = [entry(i, "i", "shop.orders", {"_id": i, "x": "y" * 1000}, o2={"_id": i}) for i in range(1, 8)]
    stream = open_small(*log)
    sizes = []
    while batch := stream.next_batch(max_bytes=3_000):
        sizes.append(len(batch))
        assert stream.post_batch_resume_token.to_bson() == batch[-1].token
    assert sizes == [2, 2, 2, 1]
    assert len(open_small(*log).next_batch(max_bytes=10)) == 1, "one event comes, whatever its size"


def test_the_header_says_what_the_event_says() -> None:
    stream = open_small(insert(1, 1), command(2, "shop", {"drop": "orders"}))
    insert_event, drop, invalidate = stream.next_batch()
    assert (insert_event.namespace, insert_event.operation_type) == (b"shop.orders", "insert")
    assert insert_event.sort_key < drop.sort_key < invalidate.sort_key
    assert bson.decode(insert_event.raw)["_id"] == bson.decode(insert_event.token)
    assert invalidate.namespace == b""


def test_a_filtered_invalidate_still_ends_the_stream_there() -> None:
    log = (insert(1, 1), command(2, "shop", {"drop": "orders"}))
    only_inserts = [{"$match": {"operationType": "insert"}}]
    stream = open_small(*log, pipeline=only_inserts)
    assert types_of(stream) == ["insert"]
    assert stream.is_closed
    assert stream.post_batch_resume_token.decode().from_invalidate
    older = open_small(*log, pipeline=only_inserts, version="5.0.4")
    assert types_of(older) == ["insert"]
    assert not older.post_batch_resume_token.decode().from_invalidate


def test_positions_are_of_the_version_that_was_asked_for() -> None:
    stream = open_small(insert(1, 1, "shop.other"), command_fields={"$_generateV2ResumeTokens": True})
    stream.next_batch()
    assert stream.post_batch_resume_token == mark(1, version=2)
    kept = open_small(insert(1, 1, "shop.other"), version="6.0.27", resumeAfter=mark(0, 2).to_document())
    kept.next_batch()
    assert kept.post_batch_resume_token == mark(1, version=2)


# --- errors


def test_errors_say_in_which_batch_they_came() -> None:
    modify = [{"$project": {"_id": 0}}]
    with pytest.raises(StreamFatal, match=r"^PlanExecutor error during aggregation :: caused by :: Encountered"):
        open_small(insert(1, 1), pipeline=modify).next_batch()
    later = open_small(insert(1, 1), pipeline=modify)
    assert later.next_batch(0) == []
    with pytest.raises(StreamFatal, match=r"^Executor error during getMore :: caused by :: Encountered"):
        later.next_batch()
    assert later.is_closed
    with pytest.raises(StreamFatal, match=r"^Encountered"):
        open_small(insert(1, 1), pipeline=modify, version="4.4.2").next_batch()


def test_an_expression_that_fails_has_one_prefix() -> None:
    divide = [{"$addFields": {"x": {"$divide": [1, "$documentKey._id"]}}}]
    with pytest.raises(PipelineFailed, match=r"^PlanExecutor error during aggregation :: caused by :: can't"):
        open_small(insert(1, 0), pipeline=divide).next_batch()


def test_an_event_over_16_mb_ends_the_stream() -> None:
    log = entry(1, "i", "shop.orders", {"_id": 1, "x": "y" * (16 * 1024 * 1024 + 16 * 1024)}, o2={"_id": 1})
    with pytest.raises(EventTooLarge) as too_large:
        open_small(log).next_batch()
    assert too_large.value.server_code == 10334


def test_collections_made_anew_have_tokens_of_their_own() -> None:
    first, second = open_small(insert(1, 1), insert(2, 1, ui=OTHER_UUID)).next_batch()
    assert first.sort_key != second.sort_key


# --- batches through the stages


def test_what_stands_before_an_error_is_given_first_however_many_are_asked_for() -> None:
    divide = [{"$addFields": {"x": {"$divide": [1, "$documentKey._id"]}}}]
    stream = open_small(insert(1, 1), insert(2, 2), insert(3, 0), insert(4, 4), pipeline=divide)
    assert [bson.decode(event.raw)["x"] for event in stream.next_batch(2)] == [1.0, 0.5]
    with pytest.raises(PipelineFailed, match=r"^Executor error during getMore"):
        stream.next_batch(2)
    assert stream.is_closed
    assert stream.next_batch(2) == []


def test_an_entry_that_is_none_ends_the_stream_behind_the_events_before_it() -> None:
    stream = open_small(insert(1, 1), entry(2, "u", "shop.orders", {"$set": {"a": 1}}), insert(3, 3))
    assert len(stream.next_batch(1)) == 1
    with pytest.raises(OplogEntryInvalid):
        stream.next_batch()
    assert stream.unfinished == []
    assert stream.next_batch() == []
    assert stream.is_closed


def test_the_error_of_an_entry_behind_an_invalidate_is_never_met() -> None:
    stream = open_small(command(1, "shop", {"drop": "orders"}), entry(2, "u", "shop.orders", {"$set": {"a": 1}}))
    assert types_of(stream) == ["drop", "invalidate"]
    assert stream.is_closed


def test_an_upstream_that_is_away_does_not_end_the_stream() -> None:
    class Away(RecordedOplog):
        failures = 1

        def open(self, since: int) -> Any:
            self.reader = super().open(since)
            return self

        def __next__(self) -> Any:
            if self.failures:
                self.failures -= 1
                raise ServerUnreachable("no primary")
            return next(self.reader)

    dialect = Dialect.of("6.0.5")
    stages = [{"$changeStream": {"startAtOperationTime": Timestamp(100, 0)}}]
    spec = parse_command({"aggregate": "orders", "pipeline": stages, "cursor": {}}, "shop", dialect)
    stream = open_stream(spec, Away(shard_of(insert(1, 1))), dialect, latest=1)
    with pytest.raises(ServerUnreachable):
        stream.next_batch()
    assert len(stream.next_batch()) == 1


def test_a_large_transaction_is_never_held_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.engine.unwind._BATCH_CHANGES", 10)
    sizes: list[int] = []
    original = Transform.__call__

    def spy(self: Transform, changes: Any, given: Any) -> None:
        sizes.append(len(changes))
        original(self, changes, given)

    monkeypatch.setattr(Transform, "__call__", spy)
    stream = open_small(insert(1, 0), transaction(2, [operation(n) for n in range(25)]), insert(3, 30))
    assert [event["documentKey"]["_id"] for event in events_of(stream)] == [0, *range(25), 30]
    assert max(sizes) == 10
