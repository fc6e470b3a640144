"""The engine's events against a real server's own change streams, event by event and byte by byte.

A random workload runs on a server of each version. Then streams of all scopes, with and without options, are
read twice over the same oplog: by the server and by the engine; a stream that an invalidate closed is
started again behind it. The run is made in rounds, and behind every token of a round the stream is resumed and read to
the end of the round: it must give exactly the rest. Only streams that look documents up are resumed less often.

`make differential OPS=200000 SEED=7` goes on in rounds of 10,000 operations, most of them in bulks and made by several
writers at once: one that waits for the answer to each write does little else. To resume behind every token takes time
as the square of a round's length, so in long rounds streams are resumed behind some hundred tokens, for a few events.
The cluster's stream is read in every long round, the others in turn, and seldom those that look documents up: they ask
the server for each event.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
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
from tailrace.oplog.source import OplogSource
from tailrace.oplog.tail import LiveOplog, read_batch, time_of
from tailrace.owned import run_together
from tailrace.raw.cluster_time import ClusterTime
from tailrace.stand import MONGODB_VERSIONS, ReplicaSet
from tailrace.stand.mongod_binary import WINDOWS_VERSIONS
from tailrace.token import ResumeToken

OPERATIONS = int(os.environ.get("OPS", "200"))
SEED = int(os.environ.get("SEED", "1"))
SHORT_ROUNDS, SHORT_ROUND, LONG_ROUND = 2_000, 200, 10_000
"""So many operations are made in short rounds, and what comes after them in long ones."""
WRITERS, LARGEST_BULK = 4, 400
"""How many writers make the operations of a long round, and how many of them at once at most."""
RESUMES = 100
"""Behind how many tokens each stream is resumed in a long round; other ones in each round."""
IN_TURN, DOCUMENTS_IN_TURN = 3, 9
"""In every so many long rounds a stream is read, and one that looks documents up."""
RAW: CodecOptions[RawBSONDocument] = CodecOptions(RawBSONDocument)
SERVER_RESUMES, LONG_SERVER_RESUMES = 8, 3
"""How many of the tokens the server resumes from, in each stream of a short and of a long round."""


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
    goes_on: bool = False
    """An invalidate does not end it: a router would."""

    @property
    def behind(self) -> int:
        """How far behind its position a resumed stream begins; routers are given the event itself, and swallow it."""
        return 0 if self.command.get("fromMongos") else 1

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
    yield Stream("database", "shop")
    for collection in ("orders", "items+"):
        yield Stream(f"collection {collection}", "shop", collection)
    lookup = {"fullDocument": "updateLookup"}
    yield Stream("update lookup", "shop", options=lookup, reads_documents=True)
    if release >= (4, 4):
        before = {"fullDocumentBeforeChange": "whenAvailable"}
        yield Stream("before", "admin", options=before, reads_documents=True)
    if release >= (6, 0):
        expanded = {"showExpandedEvents": True}
        both = {**before, **expanded, "fullDocument": "whenAvailable"}
        yield Stream("cluster expanded", "admin", options=expanded)
        yield Stream("collection expanded", "shop", "orders", options=expanded)
        yield Stream("images", "shop", options=both, reads_documents=True)
        system = {**expanded, "showSystemEvents": True}
        other_tokens = {"$_generateV2ResumeTokens": release < (7, 0)}
        yield Stream("system events", "admin", options=system)
        yield Stream("raw updates", "shop", options={"showRawUpdateDescription": True})
        yield Stream("other tokens", "admin", options=expanded, command=other_tokens)


class Run:
    """A server after its workload, and the log that it wrote."""

    def __init__(self, replica_set: ReplicaSet, client: MongoClient[Any], number: int, *, is_long: bool) -> None:
        self.client = client
        self.number = number
        self.is_long = is_long
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
        start: dict[str, Any] = {"startAtOperationTime": ClusterTime(self.start).timestamp}
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
        """All events of a stream, started again behind each invalidate.

        A collection's stream ends often, and each time the rest of the log would come from the server again: it reads
        the log that was read already.
        """
        source = self.oplog if stream.collection is None else RecordedOplog(self.log)
        events: list[Event] = []
        start: dict[str, Any] = {"startAtOperationTime": ClusterTime(self.start).timestamp}
        while True:
            more, alive = self.engine_events(stream, source, self.end, self.images, **start)
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


def suffix(stream: Stream, events: list[Event], first: int, last: int) -> list[bytes]:
    """The events of a stream from one on, to the next invalidate at most when that ends it.

    The invalidate that a stream is started after does not end it once more.
    """
    found = []
    for event in events[first:last]:
        found.append(event.raw)
        if event.operation_type == "invalidate" and not stream.goes_on and (stream.behind or len(found) > 1):
            break
    return found


def check_resuming(run: Run, stream: Stream, events: list[Event]) -> None:
    """Resume behind every event to the end, or in long rounds behind some.

    What a stream gives once the position is behind it depends on the log alone, so in long rounds the log is cut off
    a few events later, but for the first of them.
    """
    times = [event.cluster_time for event in events]
    every = max(len(events) // RESUMES, 1) if run.is_long else 20 if stream.reads_documents else 1
    first = run.number % every
    source = RecordedOplog(run.log)
    for number in range(first, len(events), every):
        is_cut = run.is_long and (number > first or stream.reads_documents)
        later = times[min(number + 3, len(times) - 1)] if is_cut else run.end
        source.visible = later
        expected = suffix(stream, events, number + stream.behind, bisect_right(times, later))
        start = start_behind(events[number])
        ours, _ = run.engine_events(stream, source, later, run.images, **start)
        check_same(stream, f"resumed behind event {number}", [event.raw for event in ours], expected)


def check_server_resuming(run: Run, stream: Stream, events: list[Event]) -> None:
    """The server resumes from the engine's tokens, and gives what the engine gives next."""
    resumes = LONG_SERVER_RESUMES if run.is_long else SERVER_RESUMES
    for number in range(0, len(events), max(len(events) // resumes, 1)):
        expected = suffix(stream, events, number + stream.behind, len(events))
        batches = run.server_batches(stream, **start_behind(events[number]))
        theirs: list[bytes] = []
        for batch, _ in batches:
            theirs += batch
            if len(theirs) >= 50 and run.is_long:
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
        expected = suffix(stream, events, first, bisect_right(times, source.visible))
        ours, _ = run.engine_events(
            stream, source, source.visible, run.images, startAtOperationTime=ClusterTime(time).timestamp
        )
        check_same(stream, f"started at {time >> 32},{time & 0xFFFFFFFF}", [e.raw for e in ours], expected)


PARAMETERS = {"maxNumberOfTransactionOperationsInSingleOplogEntry": 3, "writePeriodicNoops": False}


def operations_on(version: str) -> int:
    """Where nobody asks for more, one round is enough for a server that is slow under Wine."""
    return SHORT_ROUND if version in WINDOWS_VERSIONS and "OPS" not in os.environ else OPERATIONS


def writers_on(version: str) -> int:
    """Several writers at once bring Wine's heap down within minutes (an access violation in `RtlAllocateHeap`)."""
    return 1 if version in WINDOWS_VERSIONS else WRITERS


@pytest.mark.timeout(max(900, OPERATIONS))
@pytest.mark.parametrize("version", MONGODB_VERSIONS)
def test_the_engine_gives_the_events_of_the_server(version: str, start_mongodb: Callable[..., ReplicaSet]) -> None:
    replica_set = start_mongodb(version, parameters=PARAMETERS)
    with replica_set.client() as client:
        done, rounds, compared, wanted = 0, 0, 0, operations_on(version)
        while done < wanted:
            is_long = done >= SHORT_ROUNDS
            count = min(LONG_ROUND if is_long else SHORT_ROUND, wanted - done)
            run = Run(replica_set, client, rounds, is_long=is_long)
            write(client, version, SEED + done, count, writers=writers_on(version) if is_long else 1)
            run.finish()
            done, rounds = done + count, rounds + 1
            for number, stream in enumerate(streams_of(version)):
                turns = DOCUMENTS_IN_TURN if stream.reads_documents else IN_TURN if number else 1
                if not is_long or number % turns == rounds % turns:
                    compared += compare(run, stream)
            if is_long:
                print(f"{version}: {done} operations, {compared} events compared, 0 different", flush=True)


def write(client: MongoClient[Any], version: str, seed: int, count: int, *, writers: int) -> None:
    """Make operations; with one writer always the same ones in the same order."""
    largest = LARGEST_BULK if writers > 1 else 5
    workloads = [Workload(client, version, seed + number, largest_bulk=largest) for number in range(writers)]
    shares = [count // writers + (number < count % writers) for number in range(writers)]
    failed = run_together(
        [partial(each.run, share) for each, share in zip(workloads, shares, strict=True)], name="writer"
    )
    if failed:
        raise failed[0]


def compare(run: Run, stream: Stream) -> int:
    """Compare everything of one stream; give how many events it had."""
    events = run.all_engine_events(stream)
    theirs = run.server_events(stream)
    check_same(stream, "read", [event.raw for event in events], theirs)
    assert [event.sort_key for event in events] == sorted({event.sort_key for event in events})
    check_resuming(run, stream, events)
    check_server_resuming(run, stream, events)
    if not stream.reads_documents and stream.collection is None:
        check_times(run, stream, events)
    return len(events)
