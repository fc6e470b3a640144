"""Updates in both forms, described and applied."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson.son import SON

from tailrace.errors import OplogEntryInvalid
from tailrace.oplog.update_diff import apply_delta, delta_of, is_replacement, update_description


def describe(update: dict[str, Any], **options: Any) -> dict[str, Any]:
    return bson.decode(update_description(bson.encode(update), **options))


def delta(**sections: Any) -> dict[str, Any]:
    return {"$v": 2, "diff": sections}


def test_modifiers_keep_their_paths_and_have_no_truncated_arrays() -> None:
    update = {"$v": 1, "$set": {"a.b.0": 1, "c": {"d": 2}}, "$unset": {"x": True, "y.z": True}}
    assert list(describe(update).items()) == [
        ("updatedFields", {"a.b.0": 1, "c": {"d": 2}}),
        ("removedFields", ["x", "y.z"]),
    ]
    assert describe({"$set": {"a": 1}})["removedFields"] == []
    assert describe({"$unset": {"a": 1}})["updatedFields"] == {}


def test_a_delta_is_flattened_updates_before_inserts_before_nested_ones() -> None:
    update = delta(
        i={"new": 1},
        u={"a": 2},
        d={"gone": False},
        ssub={"u": {"x": 3}, "d": {"y": False}},
        sarr={"a": True, "l": 4, "u1": "one", "s2": {"i": {"deep": 5}}},
    )
    assert list(describe(update).items()) == [
        ("updatedFields", {"a": 2, "new": 1, "sub.x": 3, "arr.1": "one", "arr.2.deep": 5}),
        ("removedFields", ["gone", "sub.y"]),
        ("truncatedArrays", [{"field": "arr", "newSize": 4}]),
    ]


def test_ambiguous_paths_are_told_apart_where_the_server_does() -> None:
    update = delta(u={"a.b": 1, "plain": 1}, sarr={"a": True, "u0": 2, "s1": {"u": {"0": 3}}})
    assert describe(update, disambiguate=True)["disambiguatedPaths"] == {
        "a.b": ["a.b"],
        "arr.1.0": ["arr", 1, "0"],
    }


def test_a_replacement_has_an_id() -> None:
    assert is_replacement(bson.encode({"_id": 1, "diff": {"u": 1}, "$v": 2}))
    assert not is_replacement(bson.encode({"$v": 2, "diff": {}}))


@pytest.mark.parametrize(
    "update",
    [
        {"$v": 2},
        {"$v": 2, "diff": 5},
        {"$v": 2, "diff": {"u": 5}},
        {"$v": 2, "diff": {"what": {}}},
        {"$v": 2, "diff": {"sarr": {"a": True, "x0": 1}}},
        {"$v": 2, "diff": {"sarr": {"a": True, "u-1": 1}}},
        {"$v": 2, "diff": {"sarr": {"a": True, "u99999999": 1}}},
        {"$set": 5},
    ],
)
def test_what_no_server_writes_is_refused(update: dict[str, Any]) -> None:
    with pytest.raises(OplogEntryInvalid):
        describe(update)


def test_a_delta_nested_without_end_is_refused() -> None:
    diff: dict[str, Any] = {"u": {"a": 1}}
    for _ in range(300):
        diff = {"sa": diff}
    with pytest.raises(OplogEntryInvalid, match="deep"):
        describe({"$v": 2, "diff": diff})


@pytest.mark.parametrize(
    ("before", "diff", "after"),
    [
        ({"_id": 1, "a": 1, "b": 2}, {"u": {"a": 9}}, {"_id": 1, "a": 9, "b": 2}),
        ({"_id": 1, "a": 1, "b": 2}, {"d": {"a": False}, "i": {"z": 0}}, {"_id": 1, "b": 2, "z": 0}),
        ({"_id": 1, "a": 1, "b": 2}, {"i": {"a": 3}}, {"_id": 1, "b": 2, "a": 3}),
        ({"n": {"x": 1, "y": 2}}, {"sn": {"u": {"x": 5}, "i": {"z": 6}}}, {"n": {"x": 5, "y": 2, "z": 6}}),
        ({"l": [1, 2, 3, 4]}, {"sl": {"a": True, "l": 2}}, {"l": [1, 2]}),
        ({"l": [1, {"k": 1}]}, {"sl": {"a": True, "s1": {"u": {"k": 2}}, "u3": 9}}, {"l": [1, {"k": 2}, None, 9]}),
        ({"a": 1}, {"u": {"missing": 5}}, {"a": 1, "missing": 5}),
        ({"n": 5}, {"sn": {"u": {"x": 1}}}, {"n": 5}),
    ],
)
def test_a_delta_applied_gives_the_document_after(
    before: dict[str, Any], diff: dict[str, Any], after: dict[str, Any]
) -> None:
    delta_bytes = delta_of(bson.encode(SON([("$v", 2), ("diff", diff)])))
    assert delta_bytes is not None
    assert apply_delta(bson.encode(before), delta_bytes) == bson.encode(after)
