"""Ranges are cut where their entries are, and by duration where that is not known."""

from __future__ import annotations

import time
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo import MongoClient

from tailrace.spark.offset import Offset
from tailrace.spark.options import SourceOptions
from tailrace.spark.parts import cuts, event_source, range_parts
from tailrace.spark.planner import newest

pytestmark = pytest.mark.xdist_group("spark")
EVENTS = 4_000


def now(uri: str) -> Offset:
    return newest(event_source(SourceOptions.parse({"uri": uri})))


def burst(client: MongoClient[Any]) -> None:
    """Many writes, and then a time without any, which is most of the range."""
    client.shop.orders.insert_many([{"_id": number} for number in range(EVENTS)])
    time.sleep(4)
    client.shop.other.insert_one({})


def test_a_burst_is_divided_between_the_parts(start_mongodb) -> None:
    mongodb = start_mongodb()
    options = SourceOptions.parse({"uri": mongodb.uri, "namespaces": "shop.orders", "partitions": "4"})
    with mongodb.client() as client:
        start = now(mongodb.uri)
        burst(client)
        end = now(mongodb.uri)
        parts = range_parts(start, end, options)
        counts = [sum(len(some) for some in part.batches(options)) for part in parts]
        assert len(counts) == 4
        assert sum(counts) == EVENTS
        assert min(counts) > EVENTS / 4 * 0.5, counts


def test_a_range_without_samples_is_cut_by_duration(mongodb) -> None:
    end = now(mongodb.uri)
    assert end.token is not None
    before = Offset.at(Timestamp(end.token.cluster_time.time - 900_000, 1))
    with mongodb.client() as client:
        after = Offset.at(Timestamp(end.token.cluster_time.time - 600_000, 1))
        assert _seconds(cuts(client, before, after, 3)) == [_seconds([before])[0] + 100_000 * n for n in (1, 2)]


def test_a_user_without_the_right_to_sample_gets_cuts_by_duration(start_mongodb) -> None:
    mongodb = start_mongodb(auth=True)
    mongodb.add_user("reader", "secret", [{"role": "read", "db": "shop"}])
    with mongodb.client() as root, mongodb.client(username="reader", password="secret") as reader:
        root.shop.orders.insert_many([{"_id": number} for number in range(EVENTS)])
        end = now(mongodb.uri)
        assert end.token is not None
        start = Offset.at(Timestamp(end.token.cluster_time.time - 100, 1))
        assert _seconds(cuts(reader, start, end, 2)) == [end.token.cluster_time.time - 50]
        assert _seconds(cuts(root, start, end, 2)) != [end.token.cluster_time.time - 50]


def test_one_part_needs_no_cut(mongodb) -> None:
    end = now(mongodb.uri)
    with mongodb.client() as client:
        assert cuts(client, Offset.at(end.token.cluster_time), end, 1) == []


def _seconds(offsets: list[Offset]) -> list[int]:
    return [offset.token.cluster_time.time for offset in offsets if offset.token]
