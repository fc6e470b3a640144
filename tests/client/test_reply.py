"""Taking replies apart, whole or in parts, in whatever order a server writes them."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import DatetimeMS, Int64, Timestamp
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument

from tailrace.client.commands import DecodedBatch, Reply, UncutBatch
from tailrace.client.reply import SMALL_REPLY, ReplyReader

TOKEN = {"_data": "82AB"}
EVENTS = [{"_id": TOKEN, "n": n, "at": DatetimeMS(n)} for n in range(3)]
BATCH = {"nextBatch": EVENTS}
POSITION = {"postBatchResumeToken": TOKEN}
CURSOR = {"id": Int64(5), "ns": "shop.orders"}
REST = {"ok": 1.0, "operationTime": Timestamp(7, 1)}
ORDERS = {
    "as servers do": {"cursor": {**BATCH, **POSITION, **CURSOR}, **REST},
    "cursor last": {**REST, "cursor": {**BATCH, **POSITION, **CURSOR}},
    "batch last": {"cursor": {**CURSOR, **POSITION, **BATCH}, **REST},
    "token last": {"cursor": {**BATCH, **CURSOR, **POSITION}, **REST},
    "no token": {"cursor": {**BATCH, **CURSOR}, **REST},
}


def reader(codec: CodecOptions[Any] | None = None, *, decodes: bool = False, is_monitored: bool = False) -> ReplyReader:
    made = ReplyReader(17, codec or CodecOptions(), is_monitored=is_monitored)
    made.decodes = decodes
    return made


def read(made: ReplyReader, document: dict[str, Any]) -> Reply:
    made.read(memoryview(bson.encode(document)))
    assert made.reply is not None
    return made.reply


@pytest.mark.parametrize("decodes", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_all_parts_are_found_in_any_order(order: str, decodes: bool) -> None:
    reply = read(reader(decodes=decodes), ORDERS[order])
    assert list(reply.events) == [bson.encode(event) for event in EVENTS]
    assert (reply.cursor_id, reply.namespace, reply.operation_time) == (5, "shop.orders", Timestamp(7, 1))
    token = reply.post_batch_resume_token
    assert (bson.decode(token) if isinstance(token, bytes) else token) == (None if order == "no token" else TOKEN)


def test_only_small_replies_are_decoded_as_a_whole() -> None:
    made = reader(decodes=True)
    small, large = ORDERS["as servers do"], {**ORDERS["as servers do"], "more": "x" * SMALL_REPLY}
    assert isinstance(read(made, small).batch, DecodedBatch)
    assert isinstance(read(made, large).batch, UncutBatch)


@pytest.mark.parametrize(
    "codec",
    [
        CodecOptions(document_class=RawBSONDocument),
        # What the user's codec cannot decode is told with the event, not as a failure of the getMore.
        CodecOptions(datetime_conversion=DatetimeConversion.DATETIME),
    ],
)
def test_events_that_cannot_be_decoded_with_the_rest_stay_bytes(codec: CodecOptions[Any]) -> None:
    far = [{"_id": TOKEN, "at": DatetimeMS(2**60)}]
    reply = read(reader(codec, decodes=True), {"cursor": {"nextBatch": far, **POSITION, **CURSOR}, **REST})
    assert isinstance(reply.batch, UncutBatch)
    assert list(reply.events) == [bson.encode(far[0])]


def test_an_error_is_told_as_it_is() -> None:
    error = {"ok": 0.0, "errmsg": "no", "code": 43}
    for decodes in (False, True):
        made = reader(decodes=decodes)
        assert made.read(bson.encode(error)) == error
        assert made.reply is None


def test_listeners_see_the_token() -> None:
    made = reader(is_monitored=True)
    answer = made.read(bson.encode(ORDERS["as servers do"]))
    assert dict(answer["cursor"]["postBatchResumeToken"]) == TOKEN
