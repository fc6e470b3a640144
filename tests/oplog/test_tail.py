"""The live tail against real replica sets, through everything that happens to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymongo import MongoClient, WriteConcern
from pymongo.errors import OperationFailure, PyMongoError

from fault_proxies import FaultProxy
from tailrace import raw
from tailrace.errors import BsonMalformed, ChangeStreamError, HistoryLost, ServerUnreachable
from tailrace.oplog.tail import LiveOplog, OplogTail, is_first_of_set, read_batch, time_of
from tailrace.stand import ReplicaSet
from waiting import SECONDS

ALL_VERSIONS = ("4.2.6", "4.4.2", "5.0.4", "6.0.5", "6.0.27")

BEYOND_BUFFERS = 70
"""Documents of 0.9 MB, which fit into the oplog; a connection buffers up to 36 MB by the usual settings of Linux."""
CURSOR_NOT_FOUND, CURSOR_IN_USE = 43, 143


@pytest.fixture
def oplog(mongodb: ReplicaSet) -> Iterator[LiveOplog]:
    with LiveOplog.connect(mongodb.uri, await_ms=100) as oplog:
        yield oplog


def read_until(tail: OplogTail, reached: int) -> list[bytes]:
    """All entries up to a time."""
    entries: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while tail._reached < reached:
        assert time.monotonic() < deadline, "the tail never got there"
        entries += next(tail).entries
    return entries


def end_of(replica_set: ReplicaSet) -> int:
    """The time of the newest entry of the primary, whether a majority has it yet or not."""
    newest = replica_set.oplog_bounds()[1]
    return newest.time << 32 | newest.inc


def inserted_ids(entries: list[bytes], namespace: str) -> list[Any]:
    decoded = map(bson.decode, entries)
    return [entry["o"]["_id"] for entry in decoded if entry["op"] == "i" and entry["ns"] == namespace]


@pytest.mark.mongodb(*ALL_VERSIONS)
def test_gives_the_very_entries_of_the_log(mongodb: ReplicaSet, database: Any, oplog: LiveOplog) -> None:
    start = oplog.newest()
    database.c.insert_many([{"_id": n, "text": "x" * n} for n in range(300)])
    database.c.update_many({}, {"$set": {"a": 1}})
    end = end_of(mongodb)
    oplog.batch_entries = 97  # many batches
    with oplog.open(start) as tail:
        entries = read_until(tail, end)
    times = [time_of(entry) for entry in entries]
    log = [e for e in mongodb.oplog() if start <= time_of(e) <= times[-1]]
    assert entries == log
    assert times == sorted(set(times))
    assert len(entries) > 600
    assert oplog.entry_at(times[5]) == entries[5]


@pytest.mark.mongodb(*ALL_VERSIONS)
def test_waits_for_what_comes(mongodb: ReplicaSet, database: Any, oplog: LiveOplog) -> None:
    """Nothing new: batches without entries. Something new: it comes, and the position moves."""
    with oplog.open(oplog.newest()) as tail:
        first = next(tail)
        assert first.reached == time_of(first.entries[-1])
        for number in range(3):
            before = tail._reached
            database.c.insert_one({"_id": number})
            entries = read_until(tail, end_of(mongodb))
            assert inserted_ids(entries, database.c.full_name) == [number]
            assert tail._reached > before


def test_a_start_in_the_future_waits(oplog: LiveOplog) -> None:
    future = oplog.newest() + (3600 << 32)
    with oplog.open(future) as tail:
        for batch in (next(tail), next(tail)):
            assert (list(batch.entries), batch.reached) == ([], future)


def test_close_ends_a_waiting_read_and_frees_the_cursor(mongodb: ReplicaSet, oplog: LiveOplog) -> None:
    oplog.await_ms = 500
    tail = oplog.open(oplog.newest())
    next(tail)
    cursor = tail._cursor
    assert cursor is not None
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(lambda: [len(batch.entries) for batch in tail])
        tail.close()
        tail.close()
        assert set(waiting.result(SECONDS)) <= {0}
    assert list(tail) == []
    assert oplog.client.primary is not None, "its end was taken for the server's"
    code, deadline = CURSOR_IN_USE, time.monotonic() + SECONDS
    while code == CURSOR_IN_USE and time.monotonic() < deadline:  # by the read that the kill ends
        with pytest.raises(OperationFailure) as caught:
            mongodb.primary.command({"getMore": cursor._id, "collection": "oplog.rs"}, "local")
        code = caught.value.code or 0
    assert code == CURSOR_NOT_FOUND


def test_a_killed_cursor_is_opened_again(mongodb: ReplicaSet, database: Any, oplog: LiveOplog) -> None:
    with oplog.open(oplog.newest()) as tail:
        next(tail)
        cursor = tail._cursor._id  # type: ignore[union-attr]
        mongodb.primary.command({"killCursors": "oplog.rs", "cursors": [cursor]}, "local")
        database.c.insert_one({"_id": 1})
        assert inserted_ids(read_until(tail, end_of(mongodb)), database.c.full_name) == [1]


@pytest.mark.parametrize("code", [11602, 136, 189])
def test_passing_errors_are_survived(mongodb: ReplicaSet, database: Any, code: int) -> None:
    """Answers of elections, rollbacks and lost places, given by a real server on command."""
    uri = f"{mongodb.uri}&heartbeatFrequencyMS=500"  # so that pymongo soon looks at the primary again
    with LiveOplog.connect(uri, await_ms=100) as oplog, oplog.open(oplog.newest()) as tail:
        next(tail)
        fault = {"failCommands": ["getMore", "find"], "errorCode": code}
        node, opened = mongodb.primary, tail._cursor
        node.set_fail_point("failCommand", {"times": 2}, fault)
        while tail._cursor is opened:
            next(tail)
        node.set_fail_point("failCommand", "off")
        database.c.insert_one({"_id": 1})
        assert inserted_ids(read_until(tail, end_of(mongodb)), database.c.full_name) == [1]


def test_other_errors_are_told_with_their_code(mongodb: ReplicaSet, oplog: LiveOplog) -> None:
    fault = {"failCommands": ["find"], "errorCode": 13}
    with (
        mongodb.primary.fail_point("failCommand", {"times": 1}, fault),
        pytest.raises(ChangeStreamError) as caught,
    ):
        next(oplog.open(1))
    assert caught.value.server_code == 13
    assert "local" in caught.value.hint


def test_history_before_the_first_entry_of_all_is_empty(oplog: LiveOplog) -> None:
    oldest, newest = oplog.bounds()
    assert is_first_of_set(oldest)
    assert not is_first_of_set(newest)
    with oplog.open(1) as tail:
        assert next(tail).entries[0] == oldest


@pytest.mark.mongodb("4.2.6", "6.0.5", pytest.param("7.0.28", marks=pytest.mark.long))
def test_lost_history_is_refused(start_mongodb: Callable[..., ReplicaSet], mongodb: ReplicaSet) -> None:
    """When the oplog has lost the start; and when it loses the place of a tail that stood still.

    The server sends replies until the buffers of the connection are full, and a tail has these still to read. So much
    more is written that its place is lost whatever they hold.
    """
    replica_set = start_mongodb(mongodb.version, oplog_mb=1)
    with LiveOplog.connect(replica_set.uri, await_ms=100, batch_entries=1) as oplog:
        start = oplog.newest()
        tail = oplog.open(start)
        next(tail)
        with replica_set.client() as client:
            for number in range(BEYOND_BUFFERS):
                client.test.large.insert_one({"_id": number, "filler": "x" * 900_000})
        replica_set.roll_over_oplog()
        with pytest.raises(HistoryLost) as caught:
            next(oplog.open(start))
        assert caught.value.server_code == 286
        with pytest.raises(HistoryLost):
            oplog.entry_at(start)
        with pytest.raises(HistoryLost):
            read_until(tail, end_of(replica_set))
        tail.close()


class Writer:
    """Inserts numbered documents without a pause, through elections, until it is stopped."""

    def __init__(self, replica_set: ReplicaSet, collection: str = "c") -> None:
        self._collection = collection
        self._client: MongoClient[Any] = replica_set.client(retryWrites=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written: list[int] = []
        """What the set confirmed for a majority."""

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(SECONDS)
        self._client.close()

    def _run(self) -> None:
        collection = self._client.test.get_collection(self._collection, write_concern=WriteConcern("majority"))
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                collection.insert_one({"_id": number})
            except PyMongoError:
                continue  # nobody knows whether it is there: only the log tells
            self.written.append(number)

    def wait_for_more(self, count: int = 20) -> None:
        target = len(self.written) + count
        deadline = time.monotonic() + SECONDS
        while len(self.written) < target:
            assert time.monotonic() < deadline, "no write succeeds any more"
            time.sleep(0.01)


def test_elections_and_crashes_lose_and_repeat_nothing(start_mongodb: Callable[..., ReplicaSet]) -> None:
    replica_set = start_mongodb(nodes=3)
    with LiveOplog.connect(replica_set.uri, await_ms=100, socket_timeout=5) as oplog:
        with Writer(replica_set) as writer:  # a beginning that all nodes have
            writer.wait_for_more(1)
        start = oplog.newest()
        tail = oplog.open(start)
        entries: list[bytes] = []
        done = threading.Event()

        def follow() -> None:
            while not done.is_set():
                entries.extend(next(tail).entries)

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        with Writer(replica_set, "d") as writer:
            writer.wait_for_more()
            replica_set.step_down()
            writer.wait_for_more()
            crashed = replica_set.primary
            crashed.kill()
            writer.wait_for_more()
            crashed.restart()
            writer.wait_for_more()
        end = oplog.newest()
        deadline = time.monotonic() + SECONDS
        while not entries or time_of(entries[-1]) < end:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        done.set()
        follower.join(SECONDS)
        tail.close()
    log = [e for e in replica_set.oplog() if start <= time_of(e) <= time_of(entries[-1])]
    assert entries == log
    ids = inserted_ids(entries, "test.d")
    assert set(writer.written) <= set(ids)
    assert len(ids) == len(set(ids))


def test_entries_that_are_rolled_back_are_never_shown(start_mongodb: Callable[..., ReplicaSet]) -> None:
    """A primary without its majority takes writes that the set then forgets."""
    replica_set = start_mongodb(nodes=3, election_timeout_ms=3_000)
    with LiveOplog.connect(replica_set.uri, await_ms=100, socket_timeout=3) as oplog:
        tail = oplog.open(oplog.newest())
        with replica_set.client() as client:
            client.test.c.with_options(write_concern=WriteConcern("majority")).insert_one({"_id": "kept"})
        entries = read_until(tail, oplog.newest())
        old, others = replica_set.primary, replica_set.secondaries
        for node in others:
            node.kill()  # a paused one would find the entries in its socket when it goes on
        with old.client() as alone:
            lonely = alone.test.get_collection("c", write_concern=WriteConcern(1, j=True))
            lonely.insert_many([{"_id": f"lost {n}"} for n in range(50)])
            assert sum(1 for e in replica_set_oplog(old) if b"lost" in e) == 50
        entries += next(tail).entries  # the primary shows nothing of it
        entries += next(tail).entries
        old.kill()
        for node in others:
            node.restart()
        with replica_set.client() as client:
            collection = client.test.get_collection("c", write_concern=WriteConcern("majority"))
            insert_until_there_is_a_primary(collection, {"_id": "kept later"})
            old.restart()
            entries += read_until(tail, oplog.newest())
            wait_until(lambda: not any(b"lost" in entry for entry in replica_set_oplog(old)))
            collection.insert_one({"_id": "kept last"})
            entries += read_until(tail, oplog.newest())
        tail.close()
    assert inserted_ids(entries, "test.c") == ["kept", "kept later", "kept last"]


def replica_set_oplog(node: Any) -> list[bytes]:
    """The log of one node, whatever its state."""
    with node.client(readPreference="secondaryPreferred") as client:
        return [bson.encode(entry) for entry in client.local["oplog.rs"].find()]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            if condition():
                return
        except PyMongoError:
            pass  # a node that rolls back closes its connections
        assert time.monotonic() < deadline
        time.sleep(0.05)


def insert_until_there_is_a_primary(collection: Any, document: dict[str, Any]) -> None:
    def insert() -> bool:
        collection.replace_one(document, document, upsert=True)
        return True

    wait_until(insert)


def test_a_bad_network_loses_nothing(
    mongodb: ReplicaSet, database: Any, fault_proxy: Callable[[int], FaultProxy]
) -> None:
    """Resets, also in the middle of a batch, and a network that swallows packets."""
    proxy = fault_proxy(mongodb.primary.port)
    uri = f"mongodb://{proxy.address}/?directConnection=true"
    with (
        LiveOplog(MongoClient(mongodb.uri)) as clean,
        LiveOplog.connect(uri, await_ms=100, socket_timeout=1) as oplog,
    ):
        start = clean.newest()
        with oplog.open(start) as tail:
            entries = list(next(tail).entries)
            for fault in (proxy.cut, lambda: proxy.cut_after(10_000), proxy.black_hole):
                fault()
                database.c.insert_many([{"text": "x" * 500} for _ in range(200)])
                if fault == proxy.black_hole:
                    healer = threading.Timer(1.5, proxy.heal)
                    healer.start()
                entries += read_until(tail, end_of(mongodb))
        clean.client.close()
    log = [e for e in mongodb.oplog() if start <= time_of(e) <= time_of(entries[-1])]
    assert entries == log


def test_patience_ends_with_an_error_and_the_tail_goes_on_later(
    mongodb: ReplicaSet, database: Any, fault_proxy: Callable[[int], FaultProxy]
) -> None:
    proxy = fault_proxy(mongodb.primary.port)
    client: MongoClient[Any] = MongoClient(
        f"mongodb://{proxy.address}/?directConnection=true", serverSelectionTimeoutMS=100
    )
    with client, LiveOplog(client, await_ms=100, retry_seconds=0.3) as oplog:
        tail = oplog.open(oplog.newest())
        next(tail)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(ServerUnreachable):
            read_until(tail, 1 << 63)
        database.c.insert_one({"_id": 1})
        proxy.heal()
        assert inserted_ids(read_until(tail, end_of(mongodb)), database.c.full_name) == [1]
        tail.close()


def reply_of(documents: list[dict[str, Any]], **cursor: Any) -> bytes:
    return bson.encode({"cursor": {"id": bson.Int64(7), "nextBatch": documents, **cursor}, "ok": 1.0})


@given(st.lists(st.dictionaries(st.text("ab"), st.integers(-9, 9)), max_size=20))
def test_replies_are_cut_into_their_documents(documents: list[dict[str, Any]]) -> None:
    reply = read_batch(reply_of(documents))
    assert reply.cursor_id == 7
    assert list(reply.entries) == [bson.encode(document) for document in documents]


@given(st.data())
def test_damaged_replies_raise_only_the_own_error(data: st.DataObject) -> None:
    reply = bytearray(reply_of([{"a": 1}, {"b": "x"}]))
    for _ in range(data.draw(st.integers(1, 3))):
        reply[data.draw(st.integers(0, len(reply) - 1))] = data.draw(st.integers(0, 255))
    for read in (read_batch, lambda r: raw.cut_documents(r, 0), time_of, is_first_of_set):
        try:
            read(bytes(reply))
        except BsonMalformed as error:
            assert isinstance(error.offset, int)  # noqa: PT017


@pytest.mark.parametrize("reply", [{}, {"cursor": {}}, {"cursor": {"id": bson.Int64(1)}}])
def test_replies_without_a_batch_are_refused(reply: dict[str, Any]) -> None:
    with pytest.raises(BsonMalformed):
        read_batch(bson.encode(reply))
    with pytest.raises(BsonMalformed):
        raw.cut_documents(raw.document(raw.element(raw.INT32, b"0", bytes(4))), 0)
