"""The parts of a batch that Spark hands to its tasks, and how a task reads one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import ConfigurationError, PyMongoError
from pyspark.sql.datasource import InputPartition

from tailrace.capture.snapshot.chunk import Chunk
from tailrace.capture.snapshot.reading import ChunkReader
from tailrace.capture.source.cosmosdb import CosmosDbSource, server_token
from tailrace.capture.source.namespaces import WHOLE, Slice
from tailrace.capture.source.oplog import OplogSource
from tailrace.capture.source.reader import ReadBatch
from tailrace.capture.source.source import ClusterAccess, EventSource, Scope, make_source
from tailrace.driver import token_of
from tailrace.engine.expression.pipeline import compile_pipeline
from tailrace.errors import SettingsError
from tailrace.families import family_of, refuse_ends
from tailrace.logs import get_logger
from tailrace.raw.cluster_time import ClusterTime
from tailrace.settings import masked
from tailrace.spark.following import Following, UpToEnd
from tailrace.spark.offset import Offset
from tailrace.spark.options import PartitionBy, SourceOptions
from tailrace.token import ResumeToken

_EVENTS_PER_TASK = 2_000
"""So many events are worth a task."""
_AWAIT_MS = 50
"""How long a task waits at the end of the oplog before it knows that it is the end."""
_SECONDS_WITHOUT_EVENTS = 5.0
"""When a stream of Cosmos DB, which does not say how far it is, has given all it had."""


@dataclass
class Inlined(InputPartition):
    """Events that the planner had read anyway."""

    events: Sequence[bytes]

    def batches(self, options: SourceOptions) -> Iterator[Sequence[bytes]]:
        """Give them all."""
        yield self.events


@dataclass
class Range(InputPartition):
    """The events in (start, end], or a slice of them, read by the task itself."""

    start: Offset
    end: Offset
    slice: Slice = WHOLE

    def batches(self, options: SourceOptions) -> Iterator[Sequence[bytes]]:
        """Read from the server until the end is behind us."""
        source = event_source(_hasty(options))
        up_to_end = _last_token(self.end) if isinstance(source, CosmosDbSource) else _last_key(source, self.end)
        if isinstance(source, CosmosDbSource):
            source = source.until(self.end.to_bson())
        return map(self.slice.keep, Following(source, self.start).read(up_to_end))


@dataclass
class ShardRange(InputPartition):
    """The events in (start, end] of one shard of a cluster, read from that shard's oplog alone."""

    shard: str
    start: Offset
    end: Offset

    def batches(self, options: SourceOptions) -> Iterator[Sequence[bytes]]:
        """Read until nothing more can come before the end; events up to the start are not of this range."""
        own = self.start.on_shard(self.shard)
        assert own.token is not None
        source = _cluster_source(_hasty(options)).on_shard(self.shard, own.token, connected)
        start, end = self.start.key, self.end.key

        def up_to_end(read: ReadBatch) -> tuple[list[bytes], bool]:
            events, is_done = up_to(end, read.events, read.token)
            if events and _key_of(events[0]) <= start:
                events = [event for event in events if _key_of(event) > start]
            return events, is_done or (read.caught_up and _is_past(read.operation_time, end))

        return Following(source, own).read(up_to_end)


@dataclass
class Documents(InputPartition):
    """The documents of one range of `_id`, as they were at one time."""

    chunk: Chunk
    at: Timestamp

    def batches(self, options: SourceOptions) -> Iterator[Sequence[bytes]]:
        """Give them as events with the operation `read`, and of those what the pipeline makes of them."""
        client = connected(options.uri)
        events = ChunkReader(client).events(self.chunk, self.at)
        if options.selection.pipeline:
            version = client.server_info()["version"]
            stages = compile_pipeline(options.selection.pipeline, server_version=version, cluster_time=self.at)
            events = [made for event in events if (made := stages(event)) is not None]
        yield events


Part = Inlined | Range | ShardRange | Documents


@lru_cache(maxsize=8)
def connected(uri: str) -> MongoClient[Any]:
    """Give a client; workers are used again, and so are their connections."""
    try:
        return MongoClient(uri, appname="tailrace-spark")
    except (ConfigurationError, ValueError) as error:
        hint = "It looks like mongodb://host:27017/."
        raise SettingsError(f"the option uri is no MongoDB URI: {masked(str(error))}", hint=hint) from None


def event_source(options: SourceOptions) -> EventSource:
    """Give what opens streams of these options."""
    family = family_of(connected(options.uri), options.selection.family)
    if options.start is not None:
        refuse_ends(family, "the place to begin at")
    return make_source(options.source, connected(options.uri), options.selection, ClusterAccess(options.uri))


def _hasty(options: SourceOptions) -> SourceOptions:
    """Give the options of one who reads a range: nothing new will come, so waiting for it is only delay."""
    return replace(options, selection=replace(options.selection, max_await_ms=_AWAIT_MS))


def _cluster_source(options: SourceOptions) -> OplogSource:
    return OplogSource(connected(options.uri), options.selection, ClusterAccess(options.uri))


def last_time(source: EventSource, end: Offset) -> Timestamp | None:
    """Give the last time at which an event can lie before a high-water mark, where that is known.

    A stream that waits for events on an idle replica set stands at its last oplog entry, one increment before the mark
    that a new stream got: without this a task would wait for the next no-op, up to ten seconds. Behind a router the
    last entry of one shard says nothing about the others.
    """
    assert end.token is not None
    if end.token.is_of_other_family:
        return None  # such a range ends with an event
    time = end.token.cluster_time
    is_mark = end.token.decode().is_high_water_mark
    hello = source.client.admin.command("isMaster")
    if not is_mark or not time.inc or hello.get("msg") == "isdbgrid" or "configsvr" in hello:
        return None
    return Timestamp(time.time, time.inc - 1)


def has_reached(token: bytes | None, time: Timestamp | None) -> bool:
    """Return whether a stream that stands at a token has come to a time."""
    return token is not None and time is not None and ResumeToken.parse(token).cluster_time >= time


def _last_key(source: EventSource, end: Offset) -> UpToEnd:
    """End a range by the order of tokens."""
    last = last_time(source, end)

    def up_to_end(read: ReadBatch) -> tuple[list[bytes], bool]:
        events, is_done = up_to(end.key, read.events, read.token)
        return events, is_done or (read.caught_up and has_reached(read.token, last))

    return up_to_end


def _last_token(end: Offset) -> UpToEnd:
    """End a range by the very token it ends with, as Cosmos DB's have no order.

    A continuation token says how far all partitions were read, so that nothing before it is missing where it comes
    again. It may not: the document may have changed since, or partitions come in another order. Then everything is
    given that there is, and the next range repeats what is behind this one.
    """
    last = server_token(end.to_bson())
    given_at = time.monotonic()

    def up_to_end(read: ReadBatch) -> tuple[list[bytes], bool]:
        nonlocal given_at
        for number, event in enumerate(read.events):
            if server_token(token_of(event)) == last:
                return read.events[: number + 1], True
        if read.events:
            given_at = time.monotonic()
        return read.events, time.monotonic() - given_at >= _SECONDS_WITHOUT_EVENTS

    return up_to_end


def _is_past(read_up_to: Timestamp | None, end: bytes) -> bool:
    """Whether a shard whose oplog was read up to a time can have nothing more before the end."""
    if read_up_to is None:
        return False
    # A mark of another version would not be the same bytes as an end that is a mark of the same time.
    version = max(1, ResumeToken(end).version)
    return ResumeToken.high_water_mark(ClusterTime.from_timestamp(read_up_to).next.timestamp, version).key >= end


def _key_of(event: bytes) -> bytes:
    return ResumeToken.parse(token_of(event)).key


def up_to(end: bytes, events: list[bytes], token: bytes | None) -> tuple[list[bytes], bool]:
    """Give the events that are not behind the end, and whether nothing more can come before it."""
    if events and _key_of(events[-1]) > end:
        return [event for event in events if _key_of(event) <= end], True
    return events, token is not None and ResumeToken.parse(token).key >= end


def inlined_parts(events: Sequence[bytes], options: SourceOptions) -> list[Inlined]:
    """Divide events between tasks; few events are not worth many tasks."""
    wanted = min(options.partitions, -(-len(events) // _EVENTS_PER_TASK))
    if wanted < 2:
        return [Inlined(events)]
    if options.partition_by is PartitionBy.KEY:
        slices = [Slice(number + 1, wanted) for number in range(wanted)]
        return [Inlined(kept) for kept in (part.keep(list(events)) for part in slices) if kept]
    size = -(-len(events) // wanted)
    return [Inlined(events[begin : begin + size]) for begin in range(0, len(events), size)]


def range_parts(start: Offset, end: Offset, options: SourceOptions) -> Sequence[Range | ShardRange]:
    """Divide a range that the tasks read themselves: by shard and position, or else by key."""
    if start.token is None or start.key >= end.key:
        return []
    if options.partition_by is PartitionBy.KEY:
        slices = (Slice(number + 1, options.partitions) for number in range(options.partitions))
        return [Range(start, end, part) for part in slices]
    if end.token is not None and end.token.is_of_other_family:
        return [Range(start, end)]  # there is no oplog to find the middle of it by
    shards = _shards(start, end, options)
    wanted = options.partitions // max(1, len(shards))
    edges = [start, *cuts(None if shards else connected(options.uri), start, end, wanted), end]
    if shards:
        return [ShardRange(shard, *range_) for range_ in pairwise(edges) for shard in shards]
    return [Range(*range_) for range_ in pairwise(edges)]


def _shards(start: Offset, end: Offset, options: SourceOptions) -> list[str]:
    """Name the shards of a range: those of the checkpoint, so that a repetition reads the same ones.

    A stream of one collection is read merged: each shard has a drop of its own, and the stream one invalidate event.
    """
    if options.source != "oplog" or options.selection.scope is not Scope.CLUSTER:
        return []
    return sorted({*start.shards, *end.shards}) or _cluster_source(options).shards()


_SAMPLES: Final = 1_000
"""So many random entries give the middle of a range to within about three percent of its entries."""
_SAMPLES_PER_PART: Final = 25
_SECONDS_TO_SAMPLE: Final = 5
_log = get_logger("tailrace.spark")


def cuts(client: MongoClient[Any] | None, start: Offset, end: Offset, parts: int) -> list[Offset]:
    """Give positions that cut a range into parts with equally many oplog entries, or else of equal duration.

    Writes come in bursts: of a range that ends now, hours after the last write, half the duration may have nothing.
    Where the one oplog cannot be sampled (it is several, behind a router, or the user may not read `local`), and
    where the range is so small a piece of it that few random entries fall inside, the duration is all that is known.
    """
    if parts < 2:
        return []
    assert start.token is not None
    assert end.token is not None
    first, last = start.token.cluster_time, end.token.cluster_time
    times = _sampled_times(client, first, last) if client else []
    if len(times) >= parts * _SAMPLES_PER_PART:
        found = [times[len(times) * number // parts] for number in range(1, parts)]
    else:
        seconds = last.time - first.time
        found = [Timestamp(first.time + seconds * number // parts, 0) for number in range(1, parts)]
    at = (Offset.at(time) for time in sorted(set(found)))
    return [cut for cut in at if start.key < cut.key < end.key]


def _sampled_times(client: MongoClient[Any], first: Timestamp, last: Timestamp) -> list[Timestamp]:
    """Give the times of random oplog entries in a range, in order; the server finds them without reading the oplog."""
    stages = [{"$sample": {"size": _SAMPLES}}, {"$project": {"_id": 0, "ts": 1}}]
    try:
        found = client.local["oplog.rs"].aggregate(stages, maxTimeMS=_SECONDS_TO_SAMPLE * 1_000)
        return sorted(time for entry in found if first < (time := entry["ts"]) <= last)
    except PyMongoError as error:
        _log.debug("oplog_not_sampled", error=str(error), consequence="ranges are cut by duration")
        return []
