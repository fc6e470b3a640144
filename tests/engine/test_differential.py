"""The engine's events against a real server's own change streams, event by event and byte by byte.

A random workload runs on a server of each version. Then streams of all scopes, with and without options, are
read twice over the same oplog: by the server and by the engine; a stream that an invalidate closed is
started again behind it. The run is made in rounds, and behind every token of a round the stream is resumed and read to
the end of the round: it must give exactly the rest. Only streams that look documents up are resumed less often.

`make differential OPS=200000 SEED=7` goes on in rounds of 10,000 operations. To read to the end takes time as the
square of a round's length, so there most resumed streams are read for a few events, unless WHOLE allows more.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, WriteConcern

from engine.workload import Workload
from tailrace import raw
from tailrace.engine import Dialect, Event, ImageStore, open_stream, parse_command
from tailrace.engine.live import LiveImages
from tailrace.engine.recording import RecordedOplog, RecordedShard
from tailrace.oplog.reply import read_batch
from tailrace.oplog.source import OplogSource
from tailrace.oplog.tail import LiveOplog, time_of, timestamp
from tailrace.stand import MONGODB_VERSIONS, ReplicaSet
from tailrace.stand.mongod_binary import WINDOWS_VERSIONS
from tailrace.token import ResumeToken

OPERATIONS = int(os.environ.get("OPS", "2000"))
SEED = int(os.environ.get("SEED", "1"))
SHORT_ROUNDS, SHORT_ROUND, LONG_ROUND = 2_000, 200, 10_000
"""So many operations are made in short rounds, and what comes after them in long ones."""
WHOLE = int(os.environ.get("WHOLE", "2000"))
"""How many events a stream may have to be read to the end behind each of them."""
RAW: CodecOptions[RawBSONDocument] = CodecOptions(RawBSONDocument)
FULL_SUFFIXES = 3
"""How many of the tokens are resumed from until the end of the run, in each stream."""
SERVER_RESUMES = 8
"""How many of the tokens the server resumes from, in each stream."""


@dataclass(frozen=True)
class Stream:
    """A change stream: where, with which options, and with what else in the command."""

    name: str
    database: str
    collection: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    command: dict[str, Any] = field(default_factory=dict)
    reads_documents: bool = False
    """It looks documents up, which is slow."""
    resume_every: int = 1
    """From how many of its tokens it is resumed in long rounds: all, or every so many."""

    def aggregate(self, **start: Any) -> dict[str, Any]:
        stage = {**self.options, **start}
        if self.database == "admin":
            stage["allChangesForCluster"] = True
        return {
            "aggregate": self.collection or 1,
            "pipeline": [{"$changeStream": stage}],
            "cursor": {"batchSize": 1000},
            **self.command,
        }


def streams_of(version: str) -> Iterator[Stream]:
    """All scopes plain, and each option once at a scope where it shows most."""
    release = tuple(int(part) for part in version.split("."))
    yield Stream("cluster", "admin")
    yield Stream("database", "shop", resume_every=3)
    for collection in ("orders", "items+"):
        yield Stream(f"collection {collection}", "shop", collection)
    lookup = {"fullDocument": "updateLookup"}
    yield Stream("update lookup", "shop", options=lookup, reads_documents=True, resume_every=200)
    if release >= (4, 4):
        before = {"fullDocumentBeforeChange": "whenAvailable"}
        yield Stream("before", "admin", options=before, reads_documents=True, resume_every=200)
    if release >= (6, 0):
        expanded = {"showExpandedEvents": True}
        both = {**before, **expanded, "fullDocument": "whenAvailable"}
        yield Stream("cluster expanded", "admin", options=expanded)
        yield Stream("collection expanded", "shop", "orders", options=expanded)
        yield Stream("images", "shop", options=both, reads_documents=True, resume_every=200)
        system = {**expanded, "showSystemEvents": True}
        other_tokens = {"$_generateV2ResumeTokens": release < (7, 0)}
        yield Stream("system events", "admin", options=system, resume_every=9)
        yield Stream("raw updates", "shop", options={"showRawUpdateDescription": True}, resume_every=9)
        yield Stream("other tokens", "admin", options=expanded, command=other_tokens, resume_every=3)


class Run:
    """A server after its workload, and the log that it wrote."""

    def __init__(self, replica_set: ReplicaSet, client: MongoClient[Any]) -> None:
        self.client = client
        self.dialect = Dialect.of(replica_set.version)
        self.oplog = LiveOplog(client, await_ms=50)
        self.images = LiveImages(client)
        self.start = self.oplog.newest() + 1
        self.end = self.start
        self.log = RecordedShard()

    def finish(self) -> None:
        """Write a last document and read the log of the run up to it."""
        marker = self.client.shop.get_collection("end", write_concern=WriteConcern("majority"))
        marker.insert_one({})
        self.end = self.oplog.newest()
        reader = self.oplog.open(self.start)
        while not self.log.times or self.log.times[-1] < self.end:
            for entry in next(reader).entries:
                self.log.entries.append(entry)
                self.log.times.append(time_of(entry))
        reader.close()

    # --- what the server gives

    def server_batches(self, stream: Stream, **start: Any) -> Iterator[tuple[list[bytes], bool]]:
        """Read a server's stream up to the end of the run; with each batch: whether the stream lives."""
        database = self.client[stream.database]
        with self.client.start_session(causal_consistency=False) as session:
            command = stream.aggregate(**start)
            while True:
                reply = database.command(command, codec_options=RAW, session=session).raw
                batch = read_batch(reply)
                yield batch.entries, bool(batch.cursor_id)
                if not batch.cursor_id or (not batch.entries and self._position(reply) >= self.end):
                    break
                command = {
                    "getMore": batch.cursor_id,
                    "collection": stream.collection or "$cmd.aggregate",
                    "maxTimeMS": 20,
                }
            if batch.cursor_id:
                kill = {"killCursors": stream.collection or "$cmd.aggregate", "cursors": [batch.cursor_id]}
                database.command(kill)

    @staticmethod
    def _position(reply: bytes) -> int:
        span = raw.find_path(reply, b"cursor", b"postBatchResumeToken")
        assert span is not None
        time = ResumeToken.parse(reply[span[1] : span[2]]).cluster_time
        return time.time << 32 | time.inc

    def server_events(self, stream: Stream) -> list[bytes]:
        """All events of a stream, started again behind each invalidate."""
        events: list[bytes] = []
        start: dict[str, Any] = {"startAtOperationTime": timestamp(self.start)}
        while True:
            alive = True
            for batch, lives in self.server_batches(stream, **start):
                events += batch
                alive = lives
            if alive:
                return events
            start = {"startAfter": token_of(events[-1])}

    # --- what the engine gives

    def engine_events(
        self, stream: Stream, source: OplogSource, until: int, images: ImageStore | None = None, **start: Any
    ) -> tuple[list[Event], bool]:
        """Read an engine's stream up to a time; and whether it lives."""
        spec = parse_command(stream.aggregate(**start), stream.database, self.dialect)
        engine = open_stream(spec, source, self.dialect, latest=self.end, images=images)
        events: list[Event] = []
        while not engine.is_closed:
            batch = engine.next_batch()
            events += batch
            if not batch and engine.reached >= until:
                break
        alive = not engine.is_closed
        engine.close()
        return events, alive

    def all_engine_events(self, stream: Stream) -> list[Event]:
        events: list[Event] = []
        start: dict[str, Any] = {"startAtOperationTime": timestamp(self.start)}
        while True:
            more, alive = self.engine_events(stream, self.oplog, self.end, self.images, **start)
            events += more
            if alive:
                return events
            start = {"startAfter": token_of(more[-1].raw)}


def token_of(event: bytes) -> RawBSONDocument:
    span = raw.find(event, b"_id")
    assert span is not None
    return RawBSONDocument(event[span[1] : span[2]])


def check_same(stream: Stream, what: str, ours: list[bytes], theirs: list[bytes]) -> None:
    """Show the first difference as documents, because bytes tell a reader nothing."""
    if ours == theirs:
        return
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            pytest.fail(
                f"{stream.name}, {what}: event {number} differs\n"
                f"engine {bson.decode(our)}\nserver {bson.decode(their)}\n"
                f"engine {our.hex()}\nserver {their.hex()}"
            )
    longer, more = ("engine", ours) if len(ours) > len(theirs) else ("server", theirs)
    first = bson.decode(more[min(len(ours), len(theirs))])
    pytest.fail(f"{stream.name}, {what}: {len(ours)} events, not {len(theirs)}; only the {longer} has {first}")


def start_behind(event: Event) -> dict[str, Any]:
    """The option that starts a stream behind an event."""
    option = "startAfter" if event.operation_type == "invalidate" else "resumeAfter"
    return {option: token_of(event.raw)}


def suffix(events: list[Event], first: int, last: int) -> list[bytes]:
    """The events of a stream from one on, to the next invalidate at most."""
    found = []
    for event in events[first:last]:
        found.append(event.raw)
        if event.operation_type == "invalidate":
            break
    return found


def check_resuming(run: Run, stream: Stream, events: list[Event]) -> None:
    """Resume behind every event, or in long rounds behind every so many.

    What a stream gives once the position is behind it depends on the log alone, so in long rounds the log is cut off
    a few events later, most times.
    """
    times = [event.cluster_time for event in events]
    is_short = len(events) <= WHOLE
    every = stream.resume_every if not is_short else 20 if stream.reads_documents else 1
    step = 1 if is_short else max(len(events) // FULL_SUFFIXES, 1)
    source = RecordedOplog(run.log)
    for number in range(0, len(events), every):
        to_the_end = number % step < every
        later = run.end if to_the_end else times[min(number + 3, len(times) - 1)]
        source.visible = later
        expected = suffix(events, number + 1, bisect_right(times, later))
        start = start_behind(events[number])
        ours, _ = run.engine_events(stream, source, later, run.images, **start)
        check_same(stream, f"resumed behind event {number}", [event.raw for event in ours], expected)


def check_server_resuming(run: Run, stream: Stream, events: list[Event]) -> None:
    """The server resumes from the engine's tokens, and gives what the engine gives next."""
    for number in range(0, len(events), max(len(events) // SERVER_RESUMES, 1)):
        expected = suffix(events, number + 1, len(events))
        batches = run.server_batches(stream, **start_behind(events[number]))
        theirs: list[bytes] = []
        for batch, _ in batches:
            theirs += batch
            if len(theirs) >= 50 and len(events) > WHOLE:
                break
        batches.close()  # type: ignore[attr-defined]
        check_same(stream, f"server resumed behind event {number}", expected[: len(theirs)], theirs)


def check_times(run: Run, stream: Stream, events: list[Event]) -> None:
    """Start at times, also of entries that gave no event, and in the middle of nowhere."""
    times = [event.cluster_time for event in events]
    source = RecordedOplog(run.log)
    for time in run.log.times[:: max(len(run.log.times) // 15, 1)]:
        first = bisect_left(times, time)
        later = times[min(first + 3, len(times) - 1)]
        source.visible = max(later, time)
        expected = suffix(events, first, bisect_right(times, source.visible))
        ours, _ = run.engine_events(stream, source, source.visible, run.images, startAtOperationTime=timestamp(time))
        check_same(stream, f"started at {time >> 32},{time & 0xFFFFFFFF}", [e.raw for e in ours], expected)


PARAMETERS = {"maxNumberOfTransactionOperationsInSingleOplogEntry": 3, "writePeriodicNoops": False}


def operations_on(version: str) -> int:
    """Where nobody asks for more, one round is enough for a server that is slow under Wine."""
    return SHORT_ROUND if version in WINDOWS_VERSIONS and "OPS" not in os.environ else OPERATIONS


@pytest.mark.timeout(max(900, OPERATIONS))
@pytest.mark.parametrize("version", MONGODB_VERSIONS)
def test_the_engine_gives_the_events_of_the_server(version: str, start_mongodb: Callable[..., ReplicaSet]) -> None:
    replica_set = start_mongodb(version, parameters=PARAMETERS)
    with replica_set.client() as client:
        done, wanted = 0, operations_on(version)
        while done < wanted:
            count = min(SHORT_ROUND if done < SHORT_ROUNDS else LONG_ROUND, wanted - done)
            run = Run(replica_set, client)
            Workload(client, version, SEED + done).run(count)
            run.finish()
            done += count
            for stream in streams_of(version):
                compare(run, stream)


def compare(run: Run, stream: Stream) -> None:
    events = run.all_engine_events(stream)
    theirs = run.server_events(stream)
    check_same(stream, "read", [event.raw for event in events], theirs)
    assert [event.sort_key for event in events] == sorted({event.sort_key for event in events})
    check_resuming(run, stream, events)
    check_server_resuming(run, stream, events)
    if not stream.reads_documents and stream.collection is None:
        check_times(run, stream, events)
