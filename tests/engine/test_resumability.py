"""Finding the client's position: pure comparisons first, then streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from engine.small_oplog import command, events_of, insert, open_small, operation, transaction, types_of
from tailrace.engine.resumability import ResumeStatus, compare_to_resume_token
from tailrace.errors import StreamFatal
from tailrace.token.resume_token import TokenData, TokenKind

pytestmark = pytest.mark.usefixtures("implementation")

KEY_1, KEY_2 = bson.encode({"_id": 1}), bson.encode({"_id": 2})
CLIENT = TokenData(Timestamp(5, 5), txn_op_index=3, uuid=b"m" * 16, event_identifier=KEY_1)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, ResumeStatus.FOUND),
        ({"version": 2}, ResumeStatus.FOUND),
        ({"cluster_time": Timestamp(5, 4)}, ResumeStatus.CHECK_NEXT),
        ({"cluster_time": Timestamp(5, 6)}, ResumeStatus.SURPASSED),
        ({"txn_op_index": 2}, ResumeStatus.CHECK_NEXT),
        ({"txn_op_index": 4}, ResumeStatus.SURPASSED),
        ({"from_invalidate": True}, ResumeStatus.SURPASSED),
        ({"uuid": b"a" * 16}, ResumeStatus.CHECK_NEXT),
        ({"uuid": b"z" * 16}, ResumeStatus.SURPASSED),
        ({"uuid": None}, ResumeStatus.CHECK_NEXT),
        ({"event_identifier": KEY_2}, ResumeStatus.SURPASSED),
        ({"event_identifier": None}, ResumeStatus.CHECK_NEXT),
    ],
)
def test_an_event_seen_from_the_position(change: dict[str, Any], status: ResumeStatus) -> None:
    assert compare_to_resume_token(replace(CLIENT, **change), CLIENT) is status


def test_events_of_a_high_water_marks_time_are_behind_it() -> None:
    mark = TokenData(Timestamp(5, 5), kind=TokenKind.HIGH_WATER_MARK)
    assert compare_to_resume_token(CLIENT, mark) is ResumeStatus.SURPASSED
    assert compare_to_resume_token(replace(CLIENT, cluster_time=Timestamp(5, 4)), mark) is ResumeStatus.CHECK_NEXT


def test_a_part_of_an_event_stands_for_the_whole() -> None:
    client = replace(CLIENT, version=2, fragment=1)
    assert compare_to_resume_token(replace(CLIENT, version=2), client) is ResumeStatus.FOUND_WHOLE


def test_an_invalidate_is_behind_the_event_that_caused_it() -> None:
    client = replace(CLIENT, from_invalidate=True)
    assert compare_to_resume_token(CLIENT, client) is ResumeStatus.CHECK_NEXT
    assert compare_to_resume_token(client, client) is ResumeStatus.FOUND


LOG = (
    insert(1, 1),
    transaction(2, [operation(2), operation("x", "shop.other"), operation(3)]),
    insert(3, 4),
)


@pytest.mark.parametrize("option", ["resumeAfter", "startAfter"])
@pytest.mark.parametrize("version", ["4.2.6", "4.4.2", "5.0.4", "6.0.5", "6.0.27"])
def test_from_every_event_the_rest_is_the_suffix(option: str, version: str) -> None:
    events = events_of(open_small(*LOG, version=version))
    assert [event["documentKey"]["_id"] for event in events] == [1, 2, 3, 4]
    for n, event in enumerate(events):
        rest = events_of(open_small(*LOG, version=version, **{option: event["_id"]}))
        assert rest == events[n + 1 :]


def test_a_token_that_is_not_in_the_stream_is_fatal_when_an_event_comes() -> None:
    token = events_of(open_small(*LOG, collection="other"))[0]["_id"]
    with pytest.raises(StreamFatal, match="the resume token was not found") as fatal:
        open_small(*LOG, resumeAfter=token).next_batch()
    assert fatal.value.server_code == 280
    assert types_of(open_small(*LOG[:2], collection="third", resumeAfter=token)) == []


def test_a_position_that_the_filter_drops_is_found_only_before_6_0() -> None:
    token = events_of(open_small(*LOG))[0]["_id"]
    only_later = [{"$match": {"documentKey._id": {"$gt": 1}}}]
    older = open_small(*LOG, version="5.0.4", pipeline=only_later, resumeAfter=token)
    assert len(events_of(older)) == 3
    with pytest.raises(StreamFatal):
        open_small(*LOG, version="6.0.5", pipeline=only_later, resumeAfter=token).next_batch()


def test_old_tokens_are_answered_in_kind_until_the_position_is_passed() -> None:
    v0 = {"_data": "82000000640000000229295A1004000102030405060708090A0B0C0D0E0F461E5F6964002B040004"}
    rest = events_of(open_small(*LOG, resumeAfter=v0))
    assert [event["documentKey"]["_id"] for event in rest] == [3, 4]
    assert [event["_id"]["_data"][18:20] for event in rest] == ["29", "2B"], "one of version 0, then of version 1"
    newer = events_of(open_small(*LOG, version="6.0.27", resumeAfter=v0))
    assert [event["_id"]["_data"][18:20] for event in newer] == ["2B", "2B"]


def test_start_after_an_invalidate_goes_on_and_meets_the_next() -> None:
    log = (insert(1, 1), command(2, "shop", {"drop": "orders"}), insert(3, 2), command(4, "shop", {"drop": "orders"}))
    first = open_small(*log)
    assert types_of(first) == ["insert", "drop", "invalidate"]
    assert first.is_closed
    token = first.post_batch_resume_token.to_document()
    second = open_small(*log, startAfter=token)
    assert types_of(second) == ["insert", "drop", "invalidate"]
    third = open_small(*log, startAfter=second.post_batch_resume_token.to_document())
    assert types_of(third) == []
    assert not third.is_closed


def test_start_after_the_event_before_an_invalidate_gives_the_invalidate() -> None:
    log = (insert(1, 1), command(2, "shop", {"drop": "orders"}))
    drop = events_of(open_small(*log))[1]
    assert types_of(open_small(*log, resumeAfter=drop["_id"])) == ["invalidate"]
