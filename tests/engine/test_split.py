"""Events over 16 MB in fragments."""

from __future__ import annotations

from typing import Any

import bson
import pytest

from engine.small_oplog import entry, open_small
from tailrace import raw
from tailrace.engine.event import Event
from tailrace.engine.images import NoImages
from tailrace.engine.split import MAX_EVENT, Split, split_event
from tailrace.errors import EventTooLarge, StreamFatal

pytestmark = pytest.mark.usefixtures("implementation")

MB = 1024 * 1024
BIG = {"_id": 1, "x": "x" * (10 * MB)}
LOG = (
    entry(1, "i", "shop.orders", {"_id": 1}, o2={"_id": 1}),
    entry(2, "u", "shop.orders", {"_id": 1, "y": "y" * (9 * MB)}, o2={"_id": 1}),
    entry(3, "d", "shop.orders", {"_id": 1}),
)
SPLIT = [{"$changeStreamSplitLargeEvent": {}}]


class Store(NoImages):
    """Every pre-image is big."""

    def pre_image(self, uuid: bytes, time: int, index: int) -> bytes | None:
        return bson.encode(BIG)


def read(**options: Any) -> list[Event]:
    stream = open_small(
        *LOG, version="6.0.27", images=Store(), pipeline=SPLIT, fullDocumentBeforeChange="required", **options
    )
    return stream.next_batch(max_bytes=1 << 40)


def test_small_fields_come_in_the_first_fragment() -> None:
    insert, first, second, delete = (bson.decode(event.raw) for event in read())
    assert "splitEvent" not in insert
    assert first["splitEvent"] == {"fragment": 1, "of": 2}
    assert list(first)[2:] == ["wallTime", "clusterTime", "documentKey", "operationType", "ns", "fullDocument"]
    assert list(second) == ["_id", "splitEvent", "fullDocumentBeforeChange"]
    assert delete["operationType"] == "delete"


def test_every_fragment_can_be_resumed_after() -> None:
    events = read()
    assert [event.sort_key for event in events] == sorted(event.sort_key for event in events)
    for n, event in enumerate(events):
        rest = read(resumeAfter=bson.decode(event.token))
        assert [one.raw for one in rest] == [one.raw for one in events[n + 1 :]]


def test_a_fragments_token_needs_the_stage() -> None:
    fragment = bson.decode(read()[1].token)
    with pytest.raises(StreamFatal, match="must include a"):
        open_small(*LOG, version="6.0.27", resumeAfter=fragment)


def test_a_field_that_fits_nowhere_ends_the_stream() -> None:
    [event] = open_small(LOG[0], command_fields={"$_generateV2ResumeTokens": True}).next_batch()
    assert len(split_event(event)) == 1
    big = raw.element(raw.STRING, b"big", raw.string(b"x" * MAX_EVENT))
    too_big = event._replace(raw=raw.append(event.raw, big))
    with pytest.raises(EventTooLarge) as failed:
        split_event(too_big)
    assert failed.value.server_code == 7182500


@pytest.mark.parametrize(("over", "fragments"), [(0, 1), (1, 2)])
def test_the_limit_counts_the_token_twice(over: int, fragments: int) -> None:
    """Seen on 6.0.27: an event and its token of 183 bytes stay whole up to 16 MB and 8 KB together."""
    [event] = open_small(LOG[0], command_fields={"$_generateV2ResumeTokens": True}).next_batch()
    room = 16 * MB + 8 * 1024 - len(event.token) - len(event.raw) + over
    half = (room - 2 * len(raw.element(raw.STRING, b"a", raw.string(b"")))) // 2
    rest = room - 2 * len(raw.element(raw.STRING, b"a", raw.string(b""))) - half
    filled = raw.append(
        event.raw,
        raw.element(raw.STRING, b"a", raw.string(b"x" * half)),
        raw.element(raw.STRING, b"b", raw.string(b"x" * rest)),
    )
    given: list[Event] = []
    Split(None)([event._replace(raw=filled)], given)
    assert len(given) == fragments
