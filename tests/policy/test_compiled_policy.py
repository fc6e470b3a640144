"""The compiled kernel gives the very events of the reference policy, or leaves them to it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import bson
import pytest
from bson import Binary
from hypothesis import given
from hypothesis import strategies as st

import hostile_bson
from odd_events import change_events, mutated
from tailrace import raw
from tailrace.capture.formats import Format, FormatOptions
from tailrace.capture.formats.make import CompiledFormat, GovernedFormat
from tailrace.capture.record import CompiledRecords, Record
from tailrace.errors import TailraceError
from tailrace.policy import Action, Kind, Policy, Rule
from tailrace.policy.policy import _MOST_STATES, tables_of

pytest.importorskip("tailrace_kernel")

INPUTS = int(os.environ.get("INPUTS", "2000"))
SEED = int(os.environ.get("SEED", "1"))
KEY = b"0123456789abcdef"
FORMATS = [
    FormatOptions("json", tombstones=True),
    FormatOptions("bson", key_field="a"),
    FormatOptions("flat", fields=["a", "v", "note"]),
    FormatOptions("debezium", keeps_unrepresentable=True),
    FormatOptions("cloudevents"),
]
NAMES = ["v", "a", "b", "c", "d", "_id", "n", "0", "1", "*", "**", "price", "é"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(".".join)
ACTIONS = st.sampled_from(
    [None, Action(Kind.DROP), Action(Kind.MASK), Action(Kind.HASH), Action(Kind.TRUNCATE, 2), Action(Kind.TRUNCATE)]
)
RULES = st.lists(
    st.builds(
        Rule,
        st.sampled_from([("*",), ("shop.*",), ("s",), ("other.x",)]),
        st.lists(PATHS, min_size=1, max_size=3).map(tuple),
        ACTIONS,
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture(autouse=True)
def with_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_KERNEL", "on")


def outcome(apply: Any, event: bytes) -> Any:
    try:
        return apply(event)
    except TailraceError as error:
        return type(error), error.message


def assert_alike(rules: list[Rule], events: list[bytes], formats: Sequence[FormatOptions] = FORMATS) -> None:
    """Events, and the records that the kernel makes of them under the same rules."""
    policy = Policy(rules, KEY)
    made = governed_and_reference(policy, formats)
    for event in events:
        assert outcome(lambda one: policy.events([one])[0], event) == outcome(policy.event, event)
        for governed, reference in made:
            assert outcome(records_of(governed), event) == outcome(reference_records(reference, policy), event)


def records_of(governed: Format) -> Callable[[bytes], list[Record]]:
    return lambda event: list(governed.batch([event]))


def reference_records(reference: Format, policy: Policy) -> Callable[[bytes], list[Record]]:
    return lambda event: list(reference.records(policy.event(event)))


def governed_and_reference(
    policy: Policy, formats: Sequence[FormatOptions] = FORMATS
) -> list[tuple[GovernedFormat, Format]]:
    """Formats that govern events in the kernel, and those that make the records of governed events in Python."""
    pairs = []
    for options in formats:
        inner = options.make()
        assert isinstance(inner, CompiledFormat)
        for each in (inner, inner._reference):
            each._clock = lambda: 1_700_000_000_123_456_789  # type: ignore[attr-defined]
        pairs.append((GovernedFormat(inner, policy), inner._reference))
    return pairs


@given(RULES, st.lists(change_events(), min_size=1, max_size=3))
def test_any_rules_and_any_events(rules: list[Rule], events: list[bytes]) -> None:
    assert_alike(rules, events)


@given(RULES, st.data())
def test_documents_that_rules_name(rules: list[Rule], data: st.DataObject) -> None:
    """Documents whose fields are those that the rules are about, whole and as deltas."""
    names = st.sampled_from(["a", "b", "c", "d", "v", "n", "0", "é", "a.b", "a.0.c", "x"])
    leaves = st.one_of(
        st.integers(-5, 5), st.text(max_size=4), st.none(), st.just(Binary(b"12345", 6)), st.binary(max_size=4)
    )
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
    )
    document = data.draw(st.dictionaries(names, values, max_size=4))
    paths = data.draw(st.lists(st.sampled_from(["a", "a.b", "a.0", "b.1.c", "d", "é", "x"]), max_size=3))
    event = {
        "_id": {"_data": "8265F0A1B2000000072B0229296E04"},
        "operationType": "update",
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": data.draw(leaves)},
        "fullDocument": {"_id": 1, **document},
        "updateDescription": {
            "updatedFields": document,
            "removedFields": paths,
            "truncatedArrays": [{"field": path, "newSize": 1} for path in paths],
            "disambiguatedPaths": {path: ["a", 0] for path in paths},
        },
    }
    assert_alike(rules, [bson.encode(event)])


def usual(number: int, **document: Any) -> bytes:
    return bson.encode(
        {
            "_id": {"_data": "8265F0A1B2000000072B0229296E04"},
            "operationType": "insert",
            "ns": {"db": "shop", "coll": f"c{number % 3}"},
            "documentKey": {"_id": number},
            "fullDocument": {"_id": number, **document},
        }
    )


COMMON = [
    Rule(("shop.c0",), ("email", "to.street"), Action(Kind.HASH)),
    Rule(("shop.c1",), ("name", "to"), None),
    Rule(("shop.*",), ("note",), Action(Kind.TRUNCATE, 3)),
    Rule(("shop.*",), ("card",), Action(Kind.DROP)),
    Rule(("shop.*",), ("phone",), Action(Kind.MASK)),
]
PERSON = {
    "name": "Ada",
    "email": "a@b.c",
    "to": {"street": "x", "city": "y"},
    "note": "longer",
    "card": 1,
    "phone": "1",
}


def test_a_batch_keeps_its_order_and_nothing_usual_is_left_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [usual(number, **PERSON) for number in range(30)]
    policy = Policy(COMMON, KEY)
    expected = [policy.event(event) for event in events]
    assert expected != events
    monkeypatch.setattr(Policy, "event", lambda *_: pytest.fail("the kernel left an event to the reference"))
    assert policy.events(events) == expected
    assert policy.events(events) == expected
    for governed, reference in governed_and_reference(policy):
        records = [record for event in expected for record in reference.records(event)]
        assert list(governed.batch(events)) == records
        assert isinstance(governed.batch(events), CompiledRecords)


def test_more_collections_than_the_kernel_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was not taught is left to the reference: nothing leaves as it came."""
    monkeypatch.setattr("tailrace.policy.policy._MOST_NAMESPACES", 2)
    events = [
        raw.append(raw.without(usual(0, **PERSON), b"ns"), raw.element(raw.DOCUMENT, b"ns", bson.encode(ns)))
        for ns in ({"db": "shop", "coll": f"c{number % 5}"} for number in range(20))
    ]
    policy = Policy(COMMON, KEY)
    expected = [policy.event(event) for event in events]
    for _ in range(3):
        assert policy.events(events) == expected
        for governed, reference in governed_and_reference(policy):
            records = [record for event in expected for record in reference.records(event)]
            assert list(governed.batch(events)) == records


def test_a_kernel_that_is_turned_off_meanwhile_governs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(COMMON, KEY)
    [(governed, reference), *_] = governed_and_reference(policy)
    monkeypatch.setenv("TAILRACE_KERNEL", "off")
    assert list(governed.batch([usual(0, **PERSON)])) == list(reference.records(policy.event(usual(0, **PERSON))))


def test_rules_with_too_many_states_are_left_to_the_reference() -> None:
    rules = [Rule(("*",), tuple(f"**.{a}.**.b{a}.**.c{a}" for a in range(12)), Action(Kind.MASK))]
    root = Policy(rules, KEY).fields("shop.c1")
    assert root is not None
    assert tables_of(root) is None, f"fewer than {_MOST_STATES} states"
    assert_alike(rules, [usual(1, **{"0": {"b0": {"c0": 5}}})])


def test_hostile_documents() -> None:
    """Each as what rules name (`v`, `a`), and as what stands beside it."""
    named = [Rule(("shop.*",), (path,), Action(kind)) for path in ("v", "a.v") for kind in (Kind.HASH, Kind.MASK)]
    documents = [each for _, element in hostile_bson.elements() for each in hostile_bson.documents(element)]
    documents += [each for _, each in hostile_bson.deep_and_large()]
    for document in documents:
        event = raw.append(raw.without(usual(1), b"fullDocument"), raw.element(raw.DOCUMENT, b"fullDocument", document))
        for rules in (COMMON, *([rule] for rule in named)):
            assert_alike(rules, [event], FORMATS[:1])


def test_mutated_bytes() -> None:
    chance = random.Random(SEED)
    policy = Policy(COMMON, KEY)
    formats = governed_and_reference(policy)
    every = 1 if INPUTS <= 100_000 else 100
    for _ in range(0, INPUTS, 100):
        batch = [mutated(chance, usual(chance.randrange(9), **PERSON)) for _ in range(100)]
        for event in batch[::every]:
            assert outcome(lambda one: policy.events([one])[0], event) == outcome(policy.event, event), event
            for governed, reference in formats:
                assert outcome(records_of(governed), event) == outcome(reference_records(reference, policy), event)
        compiled = policy.compiled()
        assert compiled is not None
        made, _, unknown = compiled.compiled.events(batch)
        assert len(made) == len(batch)
        compiled.learn(unknown)
        for governed, _ in formats:
            assert isinstance(governed._inner, CompiledFormat)
            records = governed._inner._made(batch, compiled.compiled)
            assert records.declined == sum(type(each) is bytes for each in records.records())
