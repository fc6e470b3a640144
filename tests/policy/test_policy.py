"""A field policy holds in every part of an event, for every type of value."""

from __future__ import annotations

import re
from typing import Any

import bson
import pytest
from bson import Binary, Code, DatetimeMS, DBRef, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import EventUnconvertible
from tailrace.policy import Action, Kind, Policy, Rule, stripped
from tailrace.token import ResumeToken
from tailrace.token.resume_token import TokenData, TokenKind

KEY = b"k" * 32
NS = "shop.people"


def policy(*rules: tuple[str, str | None], namespaces: str = NS, length: int = 2) -> Policy:
    """Make a policy of (path, kind); without a kind the path is on the allow-list."""
    made = (Rule((namespaces,), (path,), Action(Kind(kind), length) if kind else None) for path, kind in rules)
    return Policy(made, KEY)


def event(**parts: Any) -> bytes:
    key = parts.get("documentKey", {"_id": 1})
    data = TokenData(Timestamp(5, 1), uuid=bytes(16), event_identifier=bson.encode(key))
    token = ResumeToken.encode(data).to_document()
    shown = {"_id": token, "operationType": "insert", "ns": {"db": "shop", "coll": "people"}, "documentKey": key}
    return bson.encode(shown | parts)


def applied(made: Policy, document: dict[str, Any]) -> dict[str, Any]:
    return bson.decode(made.event(event(fullDocument=document)))["fullDocument"]


@pytest.mark.parametrize(
    ("path", "document", "left"),
    [
        ("a", {"_id": 1, "a": 1, "b": 2}, {"_id": 1, "b": 2}),
        ("a.b", {"_id": 1, "a": {"b": 1, "c": 2}}, {"_id": 1, "a": {"c": 2}}),
        ("a.b", {"_id": 1, "a": [{"b": 1, "c": 2}, {"b": 3}, 4]}, {"_id": 1, "a": [{"c": 2}, {}, 4]}),
        ("a.b", {"_id": 1, "a": [[{"b": 1}]]}, {"_id": 1, "a": [[{}]]}),
        ("a.0", {"_id": 1, "a": [1, 2]}, {"_id": 1, "a": [None, 2]}),
        ("a.*.c", {"_id": 1, "a": {"x": {"c": 1, "d": 2}}}, {"_id": 1, "a": {"x": {"d": 2}}}),
        ("a.*.c", {"_id": 1, "a": [{"c": 1, "d": 2}]}, {"_id": 1, "a": [{"d": 2}]}),
        ("**.c", {"_id": 1, "c": 1, "a": {"b": {"c": 2, "d": {"c": 3}}}}, {"_id": 1, "a": {"b": {"d": {}}}}),
        ("a.b", {"_id": 1, "a.b": 1, "a": 2}, {"_id": 1, "a": 2}),
        ("**._id", {"_id": 1, "a": {"_id": 2}}, {"_id": 1, "a": {}}),
        ("*", {"_id": 1, "a": 2, "b": {"c": 3}}, {"_id": 1}),
    ],
)
def test_paths(path, document, left):
    assert applied(policy((path, "drop")), document) == left


@pytest.mark.parametrize(
    ("paths", "document", "left"),
    [
        (["a"], {"_id": 1, "a": {"b": 1}, "c": 2}, {"_id": 1, "a": {"b": 1}}),
        (["a.b"], {"_id": 1, "a": {"b": 1, "c": 2}, "d": 3}, {"_id": 1, "a": {"b": 1}}),
        (["a.b"], {"_id": 1, "a": [{"b": 1, "c": 2}, 5]}, {"_id": 1, "a": [{"b": 1}, None]}),
        (["a.b"], {"_id": 1, "a": "scalar"}, {"_id": 1}),
        (["a", "c.d"], {"_id": 1, "a": 1, "c": {"d": 2, "e": 3}}, {"_id": 1, "a": 1, "c": {"d": 2}}),
    ],
)
def test_only_what_is_allowed_is_kept(paths, document, left):
    assert applied(policy(*((path, None) for path in paths)), document) == left


VALUES = [
    "text", 1.5, {"x": "deep"}, ["in", "array"], Binary(b"bytes"), Binary(b"old", 2), Binary(bytes(range(16)), 4),
    ObjectId("0123456789abcdef01234567"), True, DatetimeMS(1_700_000_000_000), None, Regex("secret", "i"),
    DBRef("c", 1), Code("secret()"), Code("secret()", {"x": 1}), 7, Timestamp(9, 9), Int64(2**40),
    Decimal128("12.5"), MaxKey(),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_masked_value_keeps_its_type_and_says_nothing(value):
    before = {"_id": 1, "a": value}
    after = applied(policy(("a", "mask")), before)["a"]
    shape = bson.decode(bson.encode(before))["a"]
    assert type(after) is type(shape)
    if value not in (None, MaxKey()):
        assert after != shape


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_hashes_of_every_type(value):
    first, second = (applied(policy(("a", "hash")), {"_id": 1, "a": value})["a"] for _ in range(2))
    assert first == second
    if isinstance(value, str):
        assert re.fullmatch("[0-9a-f]{64}", first)


def test_hashes_can_be_joined():
    hash_of = lambda value: applied(policy(("a", "hash")), {"_id": 1, "a": value})["a"]  # noqa: E731
    assert hash_of(5) == hash_of(5.0) == hash_of(Int64(5)) == hash_of(Decimal128("5"))
    assert hash_of(5) != hash_of("5")
    assert Policy([Rule((NS,), ("a",), Action(Kind.HASH))], b"other").event(event(fullDocument={"a": 5})) != policy(
        ("a", "hash")
    ).event(event(fullDocument={"a": 5}))


def test_truncated_values():
    cut = applied(policy(("a", "truncate")), {"_id": 1, "a": ["häuser", Binary(b"12345"), 12345, Binary(b"1", 128)]})
    assert cut["a"] == ["hä", b"12", 12345, Binary(b"1", 128)]


def test_the_strictest_rule_counts_wherever_it_stands():
    for rules in ((("a", "mask"), ("a.b", "drop")), (("a.b", "drop"), ("a", "mask"))):
        assert applied(policy(*rules), {"_id": 1, "a": {"b": "x", "c": "y"}})["a"] == {"c": "***"}
    for rules in ((("**", "truncate"), ("a", "mask")), (("a", "mask"), ("**", "truncate"))):
        assert applied(policy(*rules), {"_id": "long", "a": "abc", "b": "abc"}) == {
            "_id": "long",
            "a": "***",
            "b": "ab",
        }


def test_what_the_client_encrypted_stays():
    secret = Binary(b"ciphertext", 6)
    for kind in ("mask", "hash", "truncate"):
        assert applied(policy(("a", kind)), {"_id": 1, "a": secret})["a"] == secret


def test_deltas():
    description = {
        "updatedFields": {"a.b": "secret", "a.0.b": "secret", "a.b.c": "secret", "c": 1, "d": {"e": "secret", "f": 2}},
        "removedFields": ["a.b", "a.x"],
        "truncatedArrays": [{"field": "a.b", "newSize": 2}, {"field": "c", "newSize": 1}],
        "disambiguatedPaths": {"a.0.b": ["a", "0", "b"], "c.0": ["c", 0]},
    }
    made = policy(("a.b", "drop"), ("d.e", "mask"))
    after = bson.decode(made.event(event(operationType="update", updateDescription=description)))["updateDescription"]
    assert after == {
        "updatedFields": {"c": 1, "d": {"e": "***", "f": 2}},
        "removedFields": ["a.x"],
        "truncatedArrays": [{"field": "c", "newSize": 1}],
        "disambiguatedPaths": {"c.0": ["c", 0]},
    }


def test_a_number_that_may_be_a_name_is_not_taken_for_a_position_by_an_allow_list():
    """`address.7.a` is `a` of an item of `address`, or of its field `7`, of which the rule says nothing."""
    update = event(operationType="update", updateDescription={"updatedFields": {"address.7": {"a": "secret"}}})
    with pytest.raises(EventUnconvertible, match="position or a name"):
        policy(("address.a", None)).event(update)
    for made in (policy(("address.a", None), ("address.*.a", None)), policy(("address", None))):
        after = bson.decode(made.event(update))["updateDescription"]["updatedFields"]
        assert after == {"address.7": {"a": "secret"}}
    assert bson.decode(policy(("address.a", "drop")).event(update))["updateDescription"]["updatedFields"] == {
        "address.7": {}
    }


def test_a_hashed_key_is_hashed_in_the_token_too():
    made = policy(("_id", "hash"))
    before = event(documentKey={"_id": "ann@example.com"}, fullDocument={"_id": "ann@example.com", "x": 1})
    after = bson.decode(made.event(before))
    assert after["documentKey"] == {"_id": after["fullDocument"]["_id"]}
    inside = ResumeToken.parse(after["_id"]).decode()
    assert bson.decode(inside.event_identifier) == after["documentKey"]
    assert inside.cluster_time == Timestamp(5, 1)


def test_a_hashed_key_in_a_token_of_version_2():
    key = {"_id": "ann@example.com"}
    identifier = bson.encode({"operationType": "insert", "documentKey": key})
    data = TokenData(Timestamp(5, 1), 2, TokenKind.EVENT, uuid=bytes(16), event_identifier=identifier)
    before = event(_id=ResumeToken.encode(data).to_document(), documentKey=key)
    after = bson.decode(policy(("_id", "hash")).event(before))
    inside = ResumeToken.parse(after["_id"]).decode()
    assert bson.decode(inside.event_identifier) == {"operationType": "insert", "documentKey": after["documentKey"]}
    assert after["documentKey"] != key


def test_a_recovered_key_left_the_process_before_and_is_not_hashed_twice():
    before = event(operationType="delete", documentKey={"_id": "f00d"}, recovered=True)
    assert policy(("_id", "hash")).event(before) == before


def test_constants_in_descriptions_of_collections_are_left_out():
    index = {"v": 2, "key": {"email": 1}, "partialFilterExpression": {"email": "ann@example.com"}}
    before = event(operationType="createIndexes", operationDescription={"indexes": [index]})
    after = bson.decode(policy(("email", "mask")).event(before))
    assert after["operationDescription"] == {"indexes": [{"v": 2, "key": {"email": 1}}]}


@pytest.mark.parametrize("version", [1, 2])
def test_nor_are_they_in_the_token_or_the_state_before(version: int):
    described = {"validator": {"email": "ann@example.com"}, "index": {"name": "n_1"}}
    identifier = bson.encode({"operationType": "modify", "operationDescription": described})
    data = TokenData(Timestamp(5, 1), version, TokenKind.EVENT, uuid=bytes(16), event_identifier=identifier)
    before = event(
        _id=ResumeToken.encode(data).to_document(),
        operationType="modify",
        operationDescription=described,
        stateBeforeChange={"collectionOptions": {"validator": {"email": "ann@example.com"}}},
    )
    after = bson.decode(policy(("email", "mask")).event(before))
    assert after["operationDescription"] == {"index": {"name": "n_1"}}
    assert after["stateBeforeChange"] == {"collectionOptions": {}}
    inside = ResumeToken.parse(after["_id"]).decode()
    kept = {"operationType": "modify", "operationDescription": {"index": {"name": "n_1"}}}
    assert bson.decode(inside.event_identifier) == kept
    assert ResumeToken.parse(after["_id"]).cluster_time == Timestamp(5, 1)


def test_other_collections_are_left_alone():
    before = event(fullDocument={"_id": 1, "a": 1})
    assert policy(("a", "drop"), namespaces="shop.orders").event(before) is before
    assert policy(("b", "drop")).event(before) is before
    assert policy(("a", "drop"), namespaces="sh*.*").event(before) != before


def test_what_is_no_event_is_refused_and_stripped():
    broken = event(fullDocument={"_id": 1, "a": {"b": 1}})
    broken = broken.replace(b"\x10b\x00", b"\x77b\x00")
    with pytest.raises(EventUnconvertible):
        policy(("a.b.c", "drop"), ("**", "mask")).event(broken)
    assert b"fullDocument" not in stripped(broken)
    assert stripped(b"nothing") == raw_empty()
    with pytest.raises(EventUnconvertible):
        policy(("a", "drop")).event(bson.encode({"_id": {"_data": "82"}, "fullDocument": {"a": 1}}))


@pytest.mark.parametrize("ns", [None, {}, {"db": "shop"}, {"coll": "people"}])
@pytest.mark.parametrize("name", ["fullDocument", "fullDocumentBeforeChange", "documentKey", "updateDescription"])
def test_what_names_no_collection_is_refused(ns, name):
    """A part of an event that came in fragments, say: nobody knows which rules it is under."""
    rules = policy(("a", "drop"), namespaces="shop.people")
    nameless = bson.decode(event()) | {name: {"a": 1}, "ns": ns}
    for made in (nameless, {key: value for key, value in nameless.items() if key != "documentKey" or key == name}):
        for govern in (rules.event, lambda given: rules.events([given])):
            with pytest.raises(EventUnconvertible, match="names no collection"):
                govern(bson.encode(made))


def raw_empty() -> bytes:
    return bson.encode({})


MARK = "mark-0123456789"
names = st.sampled_from(["a", "b", "c", "d.e", "0", "1", "_id"])
leaves = st.sampled_from([MARK, Binary(MARK.encode()), Regex(MARK), Code(MARK), Code(MARK, {"s": MARK})])
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=12
)
documents = st.dictionaries(names.filter(lambda name: name != "_id"), values, max_size=4)


@settings(max_examples=300, deadline=None)
@given(documents, st.sampled_from(["drop", "mask", "hash", "truncate"]), st.sampled_from(["insert", "update"]))
def test_no_mark_passes_a_rule_for_all_fields(document, kind, operation):
    """Everything but regular expressions and code with a scope can be cut; those are not `truncate`'s to hide."""
    made = policy(("**", kind))
    description = {"updatedFields": {f"x.{name}.0": value for name, value in document.items()}}
    before = event(operationType=operation, fullDocument=document, updateDescription=description)
    after = made.event(before)
    bson.decode(after)
    if kind != "truncate" or not any(isinstance(leaf, Regex | Code) for leaf in _leaves(document)):
        assert MARK.encode() not in after


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


@settings(max_examples=300, deadline=None)
@given(documents, st.lists(st.sampled_from(["a", "b", "a.b", "a.*.c", "d.e", "0", "a.0", "**.c"]), min_size=1))
def test_an_update_hides_what_the_whole_document_hides(document, paths):
    """A field reached by a dotted path of an update fares as the same field of the document."""
    made = policy(*((path, "drop") for path in paths))
    for name, value in document.items():
        if not isinstance(value, dict) or "." in name:
            continue
        whole = applied(made, {name: value}).get(name)
        for inner, leaf in value.items():
            delta = event(operationType="update", updateDescription={"updatedFields": {f"{name}.{inner}": leaf}})
            after = bson.decode(made.event(delta))["updateDescription"]["updatedFields"]
            if whole is None or inner not in whole:
                assert after == {}
