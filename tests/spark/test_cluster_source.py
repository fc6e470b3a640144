"""`format("tailrace")` on the oplogs of a real sharded cluster: a part of each batch for each shard."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import bson
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import spark_partition_id

from sharded_counters import KEYS, Counters
from spark_queries import SECONDS, Collected, running, wait_until
from tailrace.capture.source.oplog import OplogSource
from tailrace.capture.source.source import ClusterAccess
from tailrace.driver import token_of
from tailrace.spark.offset import Offset
from tailrace.spark.options import SourceOptions
from tailrace.spark.parts import Range, ShardRange, range_parts

pytestmark = pytest.mark.xdist_group("spark")


def options_for(shared_sharded, counters: Counters, **more: str) -> dict[str, str]:
    return {"uri": shared_sharded.config.uri, "namespaces": counters.namespace, "source": "oplog", **more}


def numbers_by_key(raw_events: list[bytes]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for event in sorted(map(bson.decode, raw_events), key=lambda event: event["_id"]["_data"]):
        found[event["documentKey"]["_id"]].append(event["fullDocument"]["n"])
    return found


def everything(counters: Counters) -> dict[int, list[int]]:
    return {key: list(range(last + 1)) for key, last in enumerate(counters.counts)}


def now(shared_sharded) -> Offset:
    with shared_sharded.config.client() as client:
        options = SourceOptions.parse({"uri": shared_sharded.config.uri, "source": "oplog"})
        source = OplogSource(client, options.selection, ClusterAccess(shared_sharded.config.uri))
        token, _ = source.now()
    return Offset.from_bson(token)


def test_a_range_is_read_by_shard_and_identically_each_time(shared_sharded, counters: Counters) -> None:
    start = now(shared_sharded)
    counters.insert()
    counters.count(40)
    end = now(shared_sharded)
    counters.count(20)  # behind the end
    options = SourceOptions.parse(options_for(shared_sharded, counters, partitions="3"))
    parts = range_parts(Offset.from_json(start.to_json()), Offset.from_json(end.to_json()), options)
    assert [part.shard for part in parts if isinstance(part, ShardRange)] == ["s0", "s1", "s2"]
    first, second = ([event for part in parts for some in part.batches(options) for event in some] for _ in range(2))
    assert first == second
    assert len(first) == KEYS + 40
    cut = Offset.from_bson(sorted(map(token_of, first))[20]).on_shards_of(end)
    halves = [*range_parts(start, cut, options), *range_parts(cut, end, options)]
    assert sorted(event for part in halves for some in part.batches(options) for event in some) == sorted(first)


def test_a_collections_own_stream_is_read_merged(shared_sharded, counters: Counters) -> None:
    start = now(shared_sharded)
    counters.insert()
    counters.count(40)
    end = now(shared_sharded)
    options = SourceOptions.parse(options_for(shared_sharded, counters, partitions="3", scope="collection"))
    parts = range_parts(start, end, options)
    assert {type(part) for part in parts} == {Range}
    events = [event for part in parts for some in part.batches(options) for event in some]
    assert numbers_by_key(events) == everything(counters)


def test_a_failed_batch_is_read_again_from_each_shard_and_nothing_is_lost(
    spark, shared_sharded, counters: Counters, tmp_path: Path
) -> None:
    time = now(shared_sharded).token.cluster_time
    more = {"startAtOperationTime": f"{time.time}:{time.inc}", "inlineBytes": "0"}
    given = options_for(shared_sharded, counters, partitions="3", **more)
    stream: Any = spark.readStream.format("tailrace").options(**given).load()
    stream = stream.select("token", "raw", spark_partition_id().alias("part"))
    counters.insert()
    counters.count(60)
    seen: list[Any] = []

    def failing(frame: Any, number: int) -> None:
        seen.extend(frame.collect())
        raise RuntimeError("the sink failed")

    with (
        running(stream, failing, tmp_path / "c") as query,
        pytest.raises(StreamingQueryException, match="the sink failed"),
    ):
        query.awaitTermination(SECONDS)
    counters.count(10)
    got = Collected()
    with running(stream, got, tmp_path / "c") as query:
        wait_until(lambda: len(got.rows) >= KEYS + 70, query)
    assert len(seen) == KEYS + 60
    assert len({row.part for row in seen}) == 3, "one part for each shard"
    assert sorted(row.token for row in got.batches[0]) == sorted(row.token for row in seen)
    assert numbers_by_key([bytes(row.raw) for row in got.rows]) == everything(counters)
    newest = max((tmp_path / "c" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    offset = json.loads(newest.read_text().splitlines()[2])
    assert sorted(offset["shards"]) == ["s0", "s1", "s2"]
