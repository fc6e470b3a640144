"""Cutting events out of replies, and putting split ones together."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from bson_strategies import DOCUMENTS
from tailrace.client.commands import Reply, UncutBatch
from tailrace.driver import Batch, token_of
from tailrace.driver.fragments import FragmentAssembler, splits_large_events
from tailrace.errors import BsonMalformed, ResumeTokenMissing
from tailrace.raw import cut_documents

TOKEN = {"_data": "82AB"}


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 99, 100, 101, 999, 1000, 1001, 10_001])
def test_all_documents_of_an_array_whatever_the_length_of_their_names(count: int) -> None:
    wanted = [bson.encode({"n": n, "pad": "x" * (n % 7)}) for n in range(count)]
    reply = bson.encode({"before": 1, "batch": [bson.decode(one) for one in wanted], "after": 2})
    start = reply.index(b"\x04batch\x00") + len(b"\x04batch\x00")
    assert cut_documents(reply, start) == wanted


@pytest.mark.parametrize("size", [0, 10, 20_000])
def test_the_events_of_a_reply_are_copies_however_large_they_are(size: int) -> None:
    wanted = [bson.encode({"n": n, "pad": "x" * size}) for n in range(3 if size else 0)]
    reply = bytearray(bson.encode({"batch": [bson.decode(one) for one in wanted]}))
    start = 4 + len(b"\x04batch\x00")
    batch = UncutBatch(memoryview(reply), start, len(reply) - 1)
    events = Reply(1, "", batch, None, None, 0).events
    reply[:] = bytes(len(reply))
    assert events == wanted


@pytest.mark.parametrize("position", [4, 7])
def test_an_array_that_lies_about_its_lengths_is_refused(position: int) -> None:
    array = bytearray(bson.encode({"0": {"n": 1}, "1": {"n": 2}}))
    for wrong in (b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x0d\x00\x00\x00"):
        changed = bytearray(array)
        changed[position : position + 4] = wrong
        with pytest.raises(BsonMalformed):
            cut_documents(bytes(changed), 0)


@pytest.mark.parametrize("before", [{}, {"txnNumber": 5, "lsid": {"id": 1}}, {"to": {"db": "a", "coll": "b"}}])
def test_a_token_is_found_wherever_it_stands(before: dict[str, Any]) -> None:
    event = bson.encode({**before, "_id": TOKEN, "operationType": "insert"})
    assert bson.decode(token_of(event)) == TOKEN
    assert Batch([event, event], None, Timestamp(1, 1)).tokens == [bson.encode(TOKEN)] * 2


@pytest.mark.parametrize("event", [{}, {"_id": 5}, {"documentKey": {"_id": TOKEN}}])
def test_no_token_is_an_error(event: dict[str, Any]) -> None:
    with pytest.raises(ResumeTokenMissing):
        token_of(bson.encode(event))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_split_events_are_put_together_over_any_batches(data: st.DataObject) -> None:
    """Some events are split at random places, the whole is dealt into random batches: the events come back."""
    wanted: list[bytes] = []
    sent: list[bytes] = []
    for number in range(data.draw(st.integers(1, 5))):
        values = data.draw(DOCUMENTS).values()
        fields = {f"f{index}": value for index, value in enumerate(values)}
        pieces = data.draw(st.integers(1, 4))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(fields)), min_size=pieces - 1, max_size=pieces - 1)))
        items = list(fields.items())
        bounds = [0, *cuts, len(items)]
        for piece in range(pieces):
            part: dict[str, Any] = {"_id": {"_data": f"{number}.{piece}"}}
            if pieces > 1:
                part["splitEvent"] = {"fragment": piece + 1, "of": pieces}
            sent.append(bson.encode({**part, **dict(items[bounds[piece] : bounds[piece + 1]])}))
        wanted.append(bson.encode({"_id": {"_data": f"{number}.{pieces - 1}"}, **fields}))
    assembler = FragmentAssembler()
    got: list[bytes] = []
    while sent:
        size = data.draw(st.integers(1, 3))
        got += assembler.feed(sent[:size])
        sent = sent[size:]
    assert got == wanted
    assert not assembler.waits


def test_a_fragment_whose_beginning_nobody_read_stays_one() -> None:
    second = bson.encode({"_id": TOKEN, "splitEvent": {"fragment": 2, "of": 2}, "ns": {"db": "a"}})
    assembler = FragmentAssembler()
    assert assembler.feed([second]) == [second]
    assert not assembler.waits


@pytest.mark.parametrize(
    ("version", "splits"),
    [
        ([4, 4, 29], False), ([6, 0, 5], False), ([6, 0, 8], False), ([6, 0, 9], True), ([6, 0, 27], True),
        ([6, 1, 0], False), ([6, 3, 2], False), ([7, 0, 0], True), ([8, 1, 0], True),
    ],
)  # fmt: skip
def test_which_servers_split(version: list[int], splits: bool) -> None:
    assert splits_large_events(version) == splits
