"""A stream that is far behind is read by another process: with the same events, records and errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from always_helped import always_help
from capture_harness import wait_until
from processes import is_running
from tailrace.capture.formats import FormatOptions
from tailrace.capture.formats.make import NAMES
from tailrace.capture.positions import Position
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.record import Record
from tailrace.capture.source import catch_up as catching_up
from tailrace.capture.source.catch_up import CatchingUp, CatchingUpSource
from tailrace.capture.source.engine_process import EngineProcess
from tailrace.capture.source.engine_program import Order
from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.oplog import OplogSource
from tailrace.capture.source.reader import ConvertedBatch
from tailrace.capture.source.source import ClusterAccess, EventBatch, Scope, Selection, Start, UnfinishedBatch
from tailrace.errors import ChangeStreamError
from tailrace.owned import GuardedProcess
from tailrace.settings import Settings
from tailrace.stand import ReplicaSet

JSON = FormatOptions("json")


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> None:
    always_help(monkeypatch.setattr)


def selection_of(database: Database[dict[str, Any]], **options: Any) -> Selection:
    return Selection(Namespaces.parse([f"{database.name}.orders"]), max_await_ms=100, **options)


def source_of(
    database: Database[dict[str, Any]], mongodb: ReplicaSet, format: FormatOptions | None = JSON, **options: Any
) -> CatchingUpSource:
    return CatchingUpSource(database.client, selection_of(database, **options), ClusterAccess(mongodb.uri), format)


def write(database: Database[dict[str, Any]], count: int = 6_000) -> Start:
    """Leave some thousand events of all kinds behind a position, with those of another collection between them."""
    token, _ = OplogSource(database.client, selection_of(database)).now()
    database.orders.insert_many([{"n": number, "pad": "x" * 100} for number in range(count)])
    database.others.insert_many([{"n": number} for number in range(2_000)])
    database.orders.update_many({"n": {"$lt": 500}}, {"$set": {"changed": True}})
    database.orders.delete_many({"n": {"$gte": count - 500}})
    with database.client.start_session() as session, session.start_transaction():
        database.orders.insert_many([{"t": number} for number in range(1_500)], session=session)
    return Start(token)


def read_all(batches: Iterator[EventBatch], wanted: int) -> Iterator[EventBatch]:
    """Give the batches with the next `wanted` events."""
    deadline = time.monotonic() + 60
    for batch in batches:
        yield batch
        wanted -= len(batch.events)
        if wanted <= 0:
            return
        assert time.monotonic() < deadline, f"{wanted} events did not come"


def events_here(database: Database[dict[str, Any]], start: Start, **options: Any) -> list[bytes]:
    """What the same stream gives without any help, up to the first pause."""
    stream = OplogSource(database.client, selection_of(database, **options)).open(start)
    events: list[bytes] = []
    try:
        for batch in stream.batches():
            events += batch.events
            if events and not batch.events and not isinstance(batch, UnfinishedBatch):
                return events
    finally:
        stream.close()
    return events


def timeless(records: list[Record]) -> list[Record]:
    """Records without the times at which they were made, which Debezium's format writes."""
    return [record._replace(value=re.sub(rb'"ts_[mun]s":\d+', b"", record.value or b"")) for record in records]


@pytest.mark.mongodb("4.4.2", "6.0.5", pytest.param("7.0.28", marks=pytest.mark.long))
@pytest.mark.parametrize("name", NAMES)
def test_events_and_records_are_those_that_this_process_makes(
    database: Database[dict[str, Any]], mongodb: ReplicaSet, helped: None, name: str
) -> None:
    start = write(database)
    expected = events_here(database, start)
    assert len(expected) > 8_000
    format = FormatOptions(name, fields=("n", "t"))
    stream = source_of(database, mongodb, format).open(start)
    assert isinstance(stream, CatchingUp)
    batches = list(read_all(stream.batches(), len(expected)))
    stream.close()
    assert [event for batch in batches for event in batch.events] == expected
    converted = [batch for batch in batches if isinstance(batch, ConvertedBatch)]
    assert len(converted) >= 3
    for batch in converted:
        assert timeless(batch.records) == timeless(format.make().batch(batch.events))


def test_a_stream_goes_there_when_it_is_far_behind_and_comes_back_when_it_is_not(
    database: Database[dict[str, Any]], mongodb: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catching_up, "_cores", lambda: 2)
    start = write(database, 60_000)
    time.sleep(catching_up._FAR_SECONDS + 1.5)
    database.orders.insert_one({"last": True})
    stream = source_of(database, mongodb).open(start)
    assert isinstance(stream, CatchingUp)
    pids = set()
    seen: list[bytes] = []
    batches = stream.batches()
    for batch in read_all(batches, 62_501):
        seen += batch.events
        pids.add(stream.helper.pid if stream.helper else None)
        if len(pids) == 1 and stream.helper is not None:
            wait_until(lambda: stream.helper and stream.helper.is_ready, "the other process is ready")
    database.orders.insert_one({"after": True})
    (live,) = [batch for batch in read_all(batches, 1) if batch.events]
    assert len(pids) == 2
    assert None in pids
    assert stream.helper is None
    assert not any(is_running(pid) for pid in pids if pid is not None)
    assert [*seen, *live.events] == events_here(database, start)
    stream.close()


def test_another_process_that_is_killed_is_done_without(
    database: Database[dict[str, Any]], mongodb: ReplicaSet, helped: None
) -> None:
    start = write(database)
    expected = events_here(database, start)
    stream = source_of(database, mongodb).open(start)
    assert isinstance(stream, CatchingUp)
    seen: list[bytes] = []
    helpers = []
    for batch in read_all(stream.batches(), len(expected)):
        seen += batch.events
        if isinstance(batch, ConvertedBatch) and stream.helper is not None:
            os.kill(stream.helper.pid, signal.SIGKILL)
        helpers.append(stream.helper)
    stream.close()
    assert seen == expected
    assert any(helpers)
    assert helpers[-1] is None


def test_without_another_process_the_stream_is_read_here(
    database: Database[dict[str, Any]], mongodb: ReplicaSet, helped: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = write(database)
    expected = events_here(database, start)
    for executable in ("/bin/false", "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", executable)
        stream = source_of(database, mongodb).open(start)
        assert isinstance(stream, CatchingUp)
        assert [event for batch in read_all(stream.batches(), len(expected)) for event in batch.events] == expected
        stream.close()


def test_a_stream_that_ends_ends_there_too(
    database: Database[dict[str, Any]], mongodb: ReplicaSet, helped: None
) -> None:
    start = write(database)
    database.orders.drop()
    expected = events_here(database, start, scope=Scope.COLLECTION)
    stream = source_of(database, mongodb, scope=Scope.COLLECTION).open(start)
    seen = [event for batch in stream.batches() for event in batch.events]
    stream.close()
    assert b"invalidate" in seen[-1]
    assert seen == expected


@pytest.mark.parametrize("pipeline", [({"$nonsense": 1},), ({"$project": {"_id": 0}},)], ids=["refused", "failing"])
def test_errors_come_as_they_are_here(
    database: Database[dict[str, Any]], mongodb: ReplicaSet, pipeline: tuple[dict[str, Any], ...]
) -> None:
    start = write(database)
    selection = selection_of(database, pipeline=pipeline)
    with pytest.raises(ChangeStreamError) as here:
        for _ in OplogSource(database.client, selection).open(start).batches():
            pass
    process = EngineProcess()
    with pytest.raises(ChangeStreamError) as there:
        for _ in process.batches(Order(ClusterAccess(mongodb.uri), selection, start, JSON)):
            pass
    process.close()
    assert type(there.value) is type(here.value)
    assert (there.value.message, there.value.code, there.value.server_code) == (
        here.value.message,
        here.value.code,
        here.value.server_code,
    )


def test_the_other_process_ends_with_a_producer_that_is_killed(mongodb: ReplicaSet) -> None:
    program = (
        "import sys, time\n"
        "from bson import Timestamp\n"
        "from tailrace.capture.source.engine_process import EngineProcess\n"
        "from tailrace.capture.source.engine_program import Order\n"
        "from tailrace.capture.source.source import ClusterAccess, Selection, Start\n"
        "process = EngineProcess()\n"
        "batches = process.batches(Order(ClusterAccess(sys.argv[1]), Selection(), Start(), None))\n"
        "next(batches)\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with GuardedProcess([sys.executable, "-c", program, mongodb.uri], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        helper = int(parent.stdout.readline())
        assert is_running(helper)
        parent.kill()
    wait_until(lambda: not is_running(helper), "the other process has ended")


@pytest.mark.parametrize("part", ["1/1", "2/3"])
def test_a_producer_delivers_the_same_with_help(
    database: Database[dict[str, Any]], mongodb: ReplicaSet, helped: None, tmp_path: Path, part: str
) -> None:
    start = write(database)
    lines = {}
    for source in ("change-stream", "oplog"):
        flags = {
            "mongodb.uri": mongodb.uri,
            "capture.name": source,
            "capture.source": source,
            "capture.namespaces": (f"{database.name}.orders",),
            "capture.slice": part,
            "capture.sink": f"file:{tmp_path / source}.jsonl",
            "capture.position_store": f"file:{tmp_path / source}",
        }
        with Capture.open(Settings.load(flags=flags), database.client) as capture:
            assert start.token is not None
            capture.begin_at(Position.behind(start.token, fingerprint=capture.source.fingerprint), reason="a test")
            capture.producer(stop_when_idle=True).run()
        lines[source] = (tmp_path / f"{source}.jsonl").read_bytes()
    assert lines["oplog"] == lines["change-stream"]
    assert lines["oplog"].count(b"\n") > 2_000
