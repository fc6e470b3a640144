"""Where a part ends: servers to 6.0 and later ones write the same position in other bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from pymongo.database import Database

from tailrace.spark.offset import Offset
from tailrace.spark.options import SourceOptions
from tailrace.spark.parts import _is_past, inlined_parts, last_time
from tailrace.token import ResumeToken


@pytest.mark.mongodb("6.0.5", "7.0.28")
def test_an_idle_server_is_known_to_have_nothing_before_its_mark(database: Database[Any]) -> None:
    with database.orders.watch(max_await_time_ms=1) as stream:
        assert stream.try_next() is None
        mark = ResumeToken.parse(stream.resume_token or {})
    time = mark.cluster_time
    source: Any = SimpleNamespace(client=database.client)
    expected = Timestamp(time.time, time.inc - 1) if time.inc else None
    assert mark.decode().is_high_water_mark
    assert last_time(source, Offset(mark)) == expected


@pytest.mark.parametrize("version", [1, 2])
def test_a_shard_that_was_read_up_to_a_mark_has_nothing_before_it(version: int) -> None:
    end = ResumeToken.high_water_mark(Timestamp(100, 5), version)
    assert end.version == version
    assert _is_past(Timestamp(100, 4), end.key)
    assert not _is_past(Timestamp(100, 3), end.key)


@pytest.mark.parametrize("by", ["range", "key"])
@pytest.mark.parametrize(("count", "tasks"), [(10, 1), (2_000, 1), (2_001, 2), (50_000, 4)])
def test_a_large_batch_is_divided_between_tasks_and_a_small_one_is_not(by: str, count: int, tasks: int) -> None:
    options = SourceOptions.parse({"uri": "mongodb://127.0.0.1/", "partitions": "4", "partitionBy": by})
    events = [bson.encode({"documentKey": {"_id": number % 999}, "n": number}) for number in range(count)]
    parts = inlined_parts(events, options)
    assert len(parts) == tasks
    assert sorted(event for part in parts for event in part.events) == sorted(events), "each event is in one task"
    keys = [{bson.decode(event)["documentKey"]["_id"] for event in part.events} for part in parts]
    assert by == "range" or sum(map(len, keys)) == min(count, 999), "the events of a document are in one task"
