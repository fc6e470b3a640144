"""Replies are cut into their documents alike by the compiled kernel and by the reference."""

from __future__ import annotations

import os
import random
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odd_events import mutated
from tailrace.errors import BsonMalformed
from tailrace.oplog.tail import read_batch
from tailrace.raw import cut_documents, documents_in


def reply_of(count: int, size: int) -> bytes:
    batch = [{"n": number, "x": "y" * (size * number % 7)} for number in range(count)]
    return bson.encode({"cursor": {"nextBatch": batch, "id": bson.Int64(5), "ns": "a.b"}, "ok": 1.0})


@pytest.mark.parametrize("use", ["on", "off"])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 100, 101, 1_001])
def test_documents_come_in_order(use: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if use == "on":
        pytest.importorskip("tailrace_kernel")
    monkeypatch.setenv("TAILRACE_KERNEL", use)
    read = read_batch(reply_of(count, 3))
    assert [bson.decode(each)["n"] for each in read.entries] == list(range(count))
    assert read.cursor_id == 5


@pytest.mark.parametrize("use", ["on", "off"])
def test_documents_that_stay_in_their_reply_are_a_sequence_of_bytes(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if use == "on":
        pytest.importorskip("tailrace_kernel")
    monkeypatch.setenv("TAILRACE_KERNEL", use)
    array = bson.encode({str(number): {"a": number} for number in range(12)})
    cut = cut_documents(array, 0)
    left = documents_in(b"xy" + array, 2)
    assert (len(left), list(left), left[-1], left[3]) == (12, cut, cut[11], cut[3])
    for chosen in (slice(1, None), slice(2, 9, 3), slice(None, None, -1), slice(20, 30), slice(-3, None)):
        assert left[chosen] == cut[chosen]
    for place in (12, -13, 2**40):
        with pytest.raises(IndexError):
            left[place]
    with pytest.raises(TypeError):
        left["a"]  # type: ignore[call-overload]
    for start in (3, len(array) + 2, len(array) + 50):
        with pytest.raises(BsonMalformed):
            documents_in(b"xy" + array, start)


@given(st.data())
def test_damaged_replies_give_the_same(data: st.DataObject) -> None:
    pytest.importorskip("tailrace_kernel")
    array = bytearray(bson.encode({str(number): {"a": number} for number in range(12)}))
    for _ in range(data.draw(st.integers(1, 3))):
        array[data.draw(st.integers(0, len(array) - 1))] = data.draw(st.integers(0, 255))
    start = data.draw(st.integers(0, 2))
    damaged = b"x" * start + bytes(array[: data.draw(st.one_of(st.none(), st.integers(0, len(array))))])

    def outcome(use: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TAILRACE_KERNEL", use)
            try:
                return list(documents_in(damaged, start)), cut_documents(damaged, start)
            except BsonMalformed as error:
                return error.message

    assert outcome("on") == outcome("off")


def test_mutated_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make fuzz-kernel` is the long form."""
    compiled = pytest.importorskip("tailrace_kernel")
    chance, inputs = random.Random(int(os.environ.get("SEED", "1"))), int(os.environ.get("INPUTS", "4000"))
    monkeypatch.setenv("TAILRACE_KERNEL", "off")
    arrays = [bson.encode({str(n): {"a": n, "b": "x" * n} for n in range(count)}) for count in (0, 1, 5, 12, 101)]
    for _ in range(inputs):
        damaged = mutated(chance, chance.choice(arrays))
        try:
            found = compiled.slice_documents(damaged, 0)
        except compiled.KernelError:
            with pytest.raises(compiled.KernelError):
                compiled.Documents(damaged, 0)
            continue
        assert found == cut_documents(damaged, 0) == list(compiled.Documents(damaged, 0))
