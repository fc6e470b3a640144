"""Hops are measured from what was observed where, and percentiles are those of the samples."""

from __future__ import annotations

import math

from tailrace.dashboard.answers import EventLine, ObservedEvent
from tailrace.dashboard.view.latencies import LatencyBook, bucket_percentile, percentile


def event(cluster_time: int, at: float, arrived_at: float | None, operation: str = "insert") -> ObservedEvent:
    line = EventLine(0, at, at + 1.0, operation, "shop.orders", "1", "", "1,1", 10)
    return ObservedEvent(line, cluster_time, 0.001, arrived_at, "", b"{}", "topic")


def test_an_event_is_followed_from_mongodb_through_kafka_to_redis() -> None:
    book = LatencyBook()
    book.event(event(100 << 32 | 1, 100.2, 100.3))
    book.arrived("redis", "fraud", 90 << 32, 100.0)
    book.arrived("redis", "fraud", 100 << 32 | 1, 101.2)
    book.arrived("redis", "fraud", 100 << 32 | 1, 150.0)
    found = {one.hop: one for one in book.summary(102.0)}
    assert set(found) == {"mongodb-kafka", "kafka-redis", "mongodb-redis"}
    assert round(found["mongodb-kafka"].p50, 3) == 0.1
    assert round(found["kafka-redis"].p50, 3) == 0.9
    assert round(found["mongodb-redis"].p50, 3) == 1.0
    assert found["mongodb-redis"].count == 1
    assert found["mongodb-redis"].is_end_to_end
    assert round(book.newest("redis")["fraud"], 3) == 1.0


def test_an_event_that_was_not_seen_is_measured_by_its_cluster_time() -> None:
    book = LatencyBook()
    book.arrived("iceberg", "shop.orders", 1 << 32, 2.0)
    book.arrived("iceberg", "shop.orders", 100 << 32 | 7, 130.0)
    (found,) = book.summary(131.0)
    assert (found.hop, found.p50, found.resolution_seconds) == ("mongodb-iceberg", 30.0, 1.0)


def test_documents_of_a_snapshot_and_old_samples_say_nothing() -> None:
    book = LatencyBook()
    book.event(event(1 << 32, 1.0, 500.0, "read"))
    assert book.summary(2.0) == []
    book.event(event(2 << 32, 2.0, 2.5))
    assert book.summary(1_000.0) == []


def test_clocks_that_differ_make_no_negative_latency() -> None:
    book = LatencyBook()
    book.event(event(10 << 32, 10.5, 10.4))
    assert book.summary(11.0)[0].p99 == 0.0


def test_percentiles() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99)] == [50.0, 95.0, 99.0]
    assert percentile([7.0], 0.99) == 7.0


def test_percentiles_of_a_histogram_are_those_of_prometheus() -> None:
    buckets = {0.1: 50.0, 0.5: 90.0, 1.0: 100.0, math.inf: 100.0}
    assert bucket_percentile(buckets, 0.5) == 0.1
    assert bucket_percentile(buckets, 0.7) == 0.1 + 0.4 * 20 / 40
    assert bucket_percentile({0.1: 0.0, math.inf: 10.0}, 0.5) == 0.1
    assert bucket_percentile({0.1: 0.0, math.inf: 0.0}, 0.5) is None
    assert bucket_percentile({}, 0.5) is None
