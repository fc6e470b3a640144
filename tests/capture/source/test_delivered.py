from __future__ import annotations

import bson
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.producer.attempt import DeliveredFilter
from tailrace.token import ResumeToken, TokenData, event_identifier


def event(time: int, index: int = 0, version: int = 1) -> bytes:
    identifier = event_identifier(version, b"insert", bson.encode({"_id": 1}))
    data = TokenData(Timestamp(time, 1), version, txn_op_index=index, uuid=bytes(16), event_identifier=identifier)
    return bson.encode({"_id": ResumeToken.encode(data).to_document(), "time": time, "index": index})


def token(of: bytes) -> bytes:
    return bson.encode(bson.decode(of)["_id"])


@given(st.integers(1, 20), st.integers(0, 3), st.lists(st.integers(1, 6), min_size=1, max_size=10))
def test_exactly_what_comes_after_the_position_is_let_through(time: int, index: int, sizes: list[int]) -> None:
    history = [event(moment, place) for moment in range(1, 20) for place in range(3)]
    position = event(time, index)
    kept: list[bytes] = []
    filter_ = DeliveredFilter(token(position))
    place = 0
    while place < len(history):
        size = sizes[place % len(sizes)]
        kept += filter_.keep(history[place : place + size])
        place += size
    after = [each for each in history if (bson.decode(each)["time"], bson.decode(each)["index"]) > (time, index)]
    assert kept == after
    assert filter_.dropped == len(history) - len(after)


def test_a_high_water_mark_lets_the_events_of_its_time_through() -> None:
    filter_ = DeliveredFilter(ResumeToken.high_water_mark(Timestamp(5, 1)).to_bson())
    assert filter_.keep([event(4), event(5), event(6)]) == [event(5), event(6)]


def test_after_a_change_of_the_token_version_events_of_the_same_time_come_rather_twice_than_never() -> None:
    filter_ = DeliveredFilter(token(event(5, 1, version=2)))
    assert filter_.keep([event(4), event(5, 0), event(5, 2)]) == [event(5, 0), event(5, 2)]
