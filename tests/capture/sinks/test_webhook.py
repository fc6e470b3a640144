"""What is particular to webhooks: signatures, idempotency keys, and what answers mean."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest

from sink_sides import WebhookSide, records
from tailrace.errors import RecordRefused


def deliver(side: WebhookSide, *numbers: int, size: int = 10) -> None:
    with side.sink() as sink:
        sink.setup()
        sink.add(records(*numbers, size=size))
        sink.flush(30)


def test_a_post_is_signed_over_its_time_and_body(webhook_side: WebhookSide) -> None:
    deliver(webhook_side, 1, 2)
    ((headers, body),) = webhook_side.posts
    signed = headers["X-Tailrace-Timestamp"].encode() + b"." + body
    expected = hmac.new(b"secret", signed, hashlib.sha256).hexdigest()
    assert headers["X-Tailrace-Signature"] == f"sha256={expected}"
    assert headers["Content-Type"] == "application/json"
    first, _ = json.loads(body)
    assert list(first) == ["ns", "op", "token", "clusterTime", "key", "value"]
    assert (first["ns"], first["op"], first["key"]) == ("shop.orders", "insert", {"_id": 1})


def test_the_idempotency_key_depends_on_the_records_alone(webhook_side: WebhookSide) -> None:
    deliver(webhook_side, 1, 2)
    deliver(webhook_side, 1, 2)
    deliver(webhook_side, 1, 3)
    first, second, third = (headers["Idempotency-Key"] for headers, _ in webhook_side.posts)
    assert first == second != third


def test_an_answer_that_asks_for_patience_is_tried_again(webhook_side: WebhookSide) -> None:
    webhook_side.answers = [(503, {}), (429, {"Retry-After": "0"}), (408, {})]
    deliver(webhook_side, 1, 2)
    assert webhook_side.numbers() == [1, 2]
    assert len(webhook_side.posts) == 1


def test_a_receiver_that_closed_the_connection_is_connected_again(webhook_side: WebhookSide) -> None:
    with webhook_side.sink() as sink:
        sink.setup()
        webhook_side.answers = [(200, {"Connection": "close"})]
        sink.add(records(1))
        sink.flush(30)
        sink.add(records(2))
        sink.flush(30)
    assert webhook_side.numbers() == [1, 2]


def test_an_answer_about_the_address_stops(webhook_side: WebhookSide) -> None:
    webhook_side.answers = [(404, {})]
    with pytest.raises(RecordRefused, match="404"):
        deliver(webhook_side, 1)


def test_a_bad_record_in_a_batch_is_found_by_halving(
    webhook_side: WebhookSide, letters: Callable[[], list[Any]]
) -> None:
    with webhook_side.sink() as sink:
        sink.setup()
        sink.add([*records(*range(9)), *records(9, size=30_000), *records(*range(10, 20))])
        sink.flush(30)
    assert webhook_side.numbers() == [number for number in range(20) if number != 9]
    assert [letter["token"][2:10] for letter in letters()] == [f"{10:08X}"]


def test_large_batches_are_cut(webhook_side: WebhookSide) -> None:
    webhook_side.largest = 10_000_000
    deliver(webhook_side, *range(1200))
    assert [len(json.loads(body)) for _, body in webhook_side.posts] == [500, 500, 200]
