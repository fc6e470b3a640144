"""A stream that ends at a position: limited batches up to it, and nothing behind it; without a Spark session."""

from __future__ import annotations

from typing import Any

import bson

from tailrace.spark import position_now
from tailrace.spark.columns import ENVELOPE
from tailrace.spark.offset import Offset
from tailrace.spark.source import TailraceDataSource


def batches(options: dict[str, str], until: Offset) -> list[int]:
    """Plan and read as Spark does, until the position is reached."""
    reader, sizes = TailraceDataSource(options).streamReader(ENVELOPE), []
    start = reader.initialOffset()
    try:
        while Offset.from_json(start).key < until.key:
            end = reader.latestOffset()
            if end == start:
                continue
            parts = reader.partitions(start, end)
            sent = reader.getCache(start, end)
            rows = sent if sent is not None else (batch for part in parts for batch in reader.read(part))
            sizes.append(sum(batch.num_rows for batch in rows))
            start = end
        assert reader.latestOffset() == start == until.to_json()
    finally:
        reader.stop()
    return sizes


def test_a_stream_ends_where_it_is_told(mongodb: Any, database: Any) -> None:
    time: bson.Timestamp = database.client.admin.command("ping")["operationTime"]
    source = {"uri": mongodb.uri, "namespaces": database.name}
    database.orders.insert_many([{"_id": n} for n in range(45)])
    until = position_now(source)
    assert until.token is not None
    database.orders.insert_many([{"_id": n} for n in range(100, 110)])
    limits = {"startAtOperationTime": f"{time.time}:{time.inc + 1}", "maxEventsPerBatch": "20"}
    sizes = batches({**source, **limits, "endAt": until.token.hex}, until)
    assert [size for size in sizes if size] == [20, 20, 5]
    later = position_now(source)
    assert later.token is not None
    rest = {"startAfter": until.token.hex, "maxEventsPerBatch": "20", "endAt": later.token.hex}
    assert sum(batches({**source, **rest}, later)) == 10
    assert (
        batches({**source, "startAfter": later.token.hex, "endAt": later.token.hex, "maxEventsPerBatch": "2"}, later)
        == []
    )
