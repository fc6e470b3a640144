"""The kernel and the reference give the same records for the same events, or the same error; and nothing crashes it.

`make fuzz-kernel INPUTS=10000000` is the long form.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import bson
import pytest
from bson import Int64
from hypothesis import given
from hypothesis import strategies as st

import hostile_bson
from odd_events import TOKEN, change_events, mutated
from tailrace import raw
from tailrace.capture.formats import Format, FormatOptions
from tailrace.capture.formats.make import CompiledFormat
from tailrace.capture.record import Record
from tailrace.errors import TailraceError

INPUTS = int(os.environ.get("INPUTS", "24000"))
"""Mutated ones in all: a sixth of them from each recording."""
SEED = int(os.environ.get("SEED", "1"))
FIELDS = ["v", "a.b", "user_id", "to.city", "price", "_id"]
OPTIONS = [
    FormatOptions(name, fields=FIELDS if name == "flat" else (), **more)
    for name in ("json", "canonical", "bson", "flat", "debezium", "cloudevents")
    for more in (
        {"tombstones": True},
        {"key_field": "a.b", "looks_up": True},
        {"key_field": "_id", "keeps_unrepresentable": True},
    )
]
pytestmark = pytest.mark.usefixtures("only_once")


@pytest.fixture(scope="module")
def only_once(implementation: str) -> None:
    if implementation == "python":
        pytest.skip("both are compared in one run")


def both(options: FormatOptions) -> tuple[Format, CompiledFormat]:
    """Make a format twice, with one clock."""
    compiled = options.make()
    assert isinstance(compiled, CompiledFormat)
    reference = compiled._reference
    for each in (compiled, reference):
        each._clock = lambda: 1_700_000_000_123_456_789  # type: ignore[union-attr]
    return reference, compiled


def outcome(convert: Callable[[bytes], Sequence[Record]], event: bytes) -> Any:
    try:
        return [(*record, type(record)) for record in convert(event)]
    except TailraceError as error:
        return type(error), str(error)


def assert_alike(event: bytes) -> None:
    for options in OPTIONS:
        reference, compiled = both(options)
        assert outcome(compiled.records, event) == outcome(reference.records, event), options


def test_recorded_events(recorded: list[bytes]) -> None:
    for options in OPTIONS:
        reference, compiled = both(options)
        for event in recorded:
            assert outcome(compiled.records, event) == outcome(reference.records, event), options


def test_what_servers_send_every_day_is_not_declined(events: dict[str, bytes]) -> None:
    for options in OPTIONS:
        _, compiled = both(options)
        for label, event in events.items():
            is_truncated = options.name == "debezium" and label == "update"
            assert compiled._compiled.batch([event], False, 0).declined == is_truncated, (options, label)


@given(change_events())
def test_any_event(event: bytes) -> None:
    assert_alike(event)


@given(st.lists(change_events(), max_size=6))
def test_a_batch_keeps_the_order(events: list[bytes]) -> None:
    for options in OPTIONS:
        if options.keeps_unrepresentable:
            reference, compiled = both(options)
            try:
                expected = [record for event in events for record in reference.records(event)]
            except TailraceError:
                continue
            assert list(compiled.batch(events)) == expected


def inserted(document: bytes, *, key: bytes | None = None) -> bytes:
    """The event of an insert."""
    head = bson.encode({"_id": TOKEN, "operationType": "insert", "ns": {"db": "a", "coll": "b"}})
    parts = [(b"documentKey", key or bson.encode({"_id": 1})), (b"fullDocument", document)]
    return raw.append(head, *(raw.element(raw.DOCUMENT, name, each) for name, each in parts))


def test_hostile_documents() -> None:
    """As the document, and as its key."""
    pairs = [both(options) for options in OPTIONS]
    for label, element in hostile_bson.elements():
        for document in hostile_bson.documents(element):
            for event in (inserted(document), inserted(bson.encode({}), key=document)):
                for reference, compiled in pairs:
                    assert outcome(compiled.records, event) == outcome(reference.records, event), (label, reference)


@pytest.mark.parametrize("key", ["a b/%?#é", "\x7f", "\x85", "\ufdd0", "\uffff", "\U0001fffe", '"\\', "\x01"])
def test_attributes_of_cloud_events(key: str) -> None:
    """A namespace and a key with characters that URIs and attributes do not have; of an insert and of a snapshot."""
    about = {"_id": TOKEN, "ns": {"db": "a", "coll": key}, "documentKey": {"_id": key}, "fullDocument": {"a": {"b": 1}}}
    for operation in ("insert", "read"):
        assert_alike(bson.encode({**about, "operationType": operation}))
    assert_alike(bson.encode({**about, "operationType": "delete", "recovered": True}))


def test_deep_and_large_documents() -> None:
    for _, document in hostile_bson.deep_and_large():
        assert_alike(inserted(document))


def test_texts_of_doubles() -> None:
    """Doubles of all sizes, powers of two and of ten among them, where the shortest digits are hard to find."""
    numbers = [2.0**power for power in range(-1074, 1024)] + [10.0**power for power in range(-320, 309)]
    chance = random.Random(SEED)
    numbers += [chance.uniform(-1, 1) * 10 ** chance.randint(-310, 308) for _ in range(4000)]
    document = {"_id": 1, **{f"n{place}.{sign}": sign * each for place, each in enumerate(numbers) for sign in (1, -1)}}
    event = {"_id": TOKEN, "operationType": "insert", "ns": {"db": "a", "coll": "b"}, "documentKey": {"_id": 1}}
    assert_alike(bson.encode({**event, "fullDocument": document}))


def test_names_and_texts_of_punctuation() -> None:
    """Debezium's text has a blank behind each colon that follows a name, and behind no other."""
    document = {"_id": 1, ":": ":x", ",": [":", ",", ":,"], '"': '":', "a:b": {":": "\\"}}
    event = {"_id": TOKEN, "operationType": "insert", "ns": {"db": "a", "coll": "b"}, "documentKey": {"_id": 1}}
    assert_alike(bson.encode({**event, "fullDocument": document}))
    assert_alike(bson.encode({**event, "fullDocument": {"_id": 1, ":": ":x"}}))


def test_mutated_bytes(recorded: list[bytes]) -> None:
    """Each hundredth is compared with what the reference makes of it, and of a short run each."""
    chance = random.Random(SEED)
    pairs = [both(options) for options in OPTIONS]
    every = 1 if INPUTS <= 100_000 else 100
    for _ in range(0, INPUTS // 6, 100):
        batch = [mutated(chance, chance.choice(recorded)) for _ in range(100)]
        for reference, compiled in pairs:
            made = compiled._compiled.batch(batch, False, 0)
            assert made.declined == sum(type(each) is bytes for each in made.records())
            for event in batch[::every]:
                assert outcome(compiled.records, event) == outcome(reference.records, event), event


@pytest.mark.long
def test_memory_stays_flat(events: dict[str, bytes]) -> None:
    """`make fuzz-kernel` runs it: the memory after a hundredth of the batches is the memory after all of them."""
    batch = [event for _ in range(200) for event in events.values()]
    count = max(10, INPUTS * 10 // len(batch))
    formats = [both(options)[1] for options in OPTIONS]
    begin = 0
    for number in range(count):
        formats[number % len(formats)].batch(batch)
        if number == max(len(formats), count // 100):
            begin = resident()
    assert resident() - begin < 16_000_000


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_another_thing_than_bytes_is_a_type_error() -> None:
    _, compiled = both(OPTIONS[0])
    with pytest.raises(TypeError):
        compiled._compiled.batch([Int64(1)], False, 0)
