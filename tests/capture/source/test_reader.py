"""How what a source gives is cut into batches."""

from __future__ import annotations

import bson
from bson.timestamp import Timestamp

from tailrace.capture.source.reader import split
from tailrace.capture.source.source import EVENTS_PER_BATCH
from tailrace.driver import Batch
from tailrace.token import ResumeToken

EVENTS = [
    bson.encode(
        {
            "_id": ResumeToken.high_water_mark(Timestamp(1, number + 1)).to_document(),
            "operationType": "insert",
            "ns": {"db": "d", "coll": "c"},
            "documentKey": {"_id": number},
            "fullDocument": {"_id": number},
        }
    )
    for number in range(EVENTS_PER_BATCH * 2 + 1)
]
TOKEN = ResumeToken.high_water_mark(Timestamp(9, 1)).to_bson()


def test_a_large_reply_is_cut_and_the_position_moves_inside_of_it() -> None:
    found = list(split(Batch(EVENTS, TOKEN, None)))
    assert [len(batch.events) for batch in found] == [EVENTS_PER_BATCH, EVENTS_PER_BATCH, 1]
    assert [batch.token == TOKEN for batch in found] == [False, False, True]


def test_a_batch_is_recent_when_it_ends_at_the_servers_own_time() -> None:
    """Then a transaction of an exactly-once sink ends with it, and waits for no more."""
    for behind, is_recent in ((0, True), (1, True), (2, False), (600, False)):
        (batch,) = split(Batch(EVENTS[:1], TOKEN, Timestamp(9 + behind, 5)))
        assert batch.is_recent == is_recent
    (unknown,) = split(Batch(EVENTS[:1], TOKEN, None))
    assert not unknown.is_recent
