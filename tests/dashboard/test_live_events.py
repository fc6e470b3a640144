"""The newest events within their bytes, and each in full with its token decoded."""

from __future__ import annotations

from dataclasses import replace

import orjson
from bson import Timestamp

from tailrace.dashboard.answers import EventLine, ObservedEvent
from tailrace.dashboard.view.live_events import LARGEST_VALUE, EventRing, detail_of, token_parts
from tailrace.token import ResumeToken

TOKEN = ResumeToken.high_water_mark(Timestamp(1_700_000_000, 7)).hex


def event(key: str, operation: str = "insert", value: bytes = b'{"a": 1}') -> ObservedEvent:
    line = EventLine(0, 1.0, 2.0, operation, "shop.orders", key, f"amount={key}", "1700000000,7", len(value))
    return ObservedEvent(line, 1_700_000_000 << 32 | 7, 0.001, 1.5, TOKEN, value, "topic t, partition 0, offset 4")


def test_the_oldest_make_room_and_the_bytes_stay_within_their_bound() -> None:
    ring = EventRing(50_000)
    for number in range(500):
        ring.add(event(str(number), value=b"x" * 500))
        assert ring.buffered_bytes <= 50_000
    assert ring.count == 500
    assert ring.find(1) is None
    assert ring.find(501) is None
    found = ring.find(500)
    assert found is not None
    assert found.line.key == "499"


def test_what_is_new_since_a_number_comes_in_order_and_no_more_than_asked_for() -> None:
    ring = EventRing(1_000_000)
    for number in range(10):
        ring.add(event(str(number)))
    assert [line.number for line in ring.since(7, 100)] == [8, 9, 10]
    assert [line.number for line in ring.since(0, 3)] == [8, 9, 10]


def test_events_are_chosen_by_namespace_operation_and_text() -> None:
    ring = EventRing(1_000_000)
    ring.add(event("17"))
    ring.add(event("18", "delete"))
    other = event("17")
    ring.add(replace(other, line=replace(other.line, namespace="shop.users")))
    assert [line.number for line in ring.newest(10)] == [3, 2, 1]
    assert [line.number for line in ring.newest(10, namespace="shop.orders", operation="insert")] == [1]
    assert [line.number for line in ring.newest(1, text="AMOUNT=17")] == [3]


def test_an_event_in_full_has_its_token_decoded() -> None:
    detail = detail_of(event("1"))
    assert detail.event == {"a": 1}
    assert detail.token_parts["tokenType"] == "high water mark"
    assert detail.token_parts["clusterTime"] == {"$timestamp": {"t": 1_700_000_000, "i": 7}}
    orjson.dumps(detail)


def test_a_huge_value_is_held_by_its_beginning() -> None:
    ring = EventRing(10_000_000)
    ring.add(event("1", value=b"x" * (LARGEST_VALUE + 1)))
    held = ring.find(1)
    assert held is not None
    detail = detail_of(held)
    assert detail.is_cut
    assert len(detail.event) == LARGEST_VALUE


def test_a_bad_token_is_shown_as_bad() -> None:
    assert "problem" in token_parts("zz")
    assert "problem" in token_parts("82")
    assert token_parts("") == {}
