"""The `debezium` format against Debezium itself: the same keys and values, byte for byte."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import debezium_run
from bson_strategies import DOCUMENTS
from tailrace.capture.formats import debezium_json
from tailrace.capture.formats.debezium import DebeziumFormat


def differences(pairs: list[debezium_run.Pair]) -> list[tuple[Any, Any]]:
    """Give what differs between Debezium's records and ours."""
    format = DebeziumFormat("shop")
    format.keeps_unrepresentable = True  # Debezium writes everything
    found = []
    for event, theirs in pairs:
        ours = [(record.key, debezium_run.masked(record.value)) for record in format.records(event)]
        found += [(theirs, ours)] if ours != theirs else []
    return found


def test_keys_and_values_are_the_bytes_that_debezium_was_seen_to_write() -> None:
    """Every BSON type as `_id` and as value, snapshot and stream, transactions, deletes with tombstones."""
    pairs = debezium_run.load(debezium_run.GOLDEN)
    assert len(pairs) > 600
    assert differences(pairs) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "mode"),
    [("5.0.4", "change_streams"), *(("6.0.5", mode) for mode in debezium_run.MODES)],
)
def test_keys_and_values_are_debeziums_bytes(version: str, mode: str, tmp_path: Path) -> None:
    pairs = debezium_run.run(version, mode, tmp_path)
    assert len(pairs) > 600
    assert differences(pairs) == []


@given(st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]))
def test_doubles_are_read_back_as_they_were(value: float) -> None:
    text = debezium_json.java_double(value)
    assert struct.pack("<d", float(text)) == struct.pack("<d", value) or value != value
    assert "." in text or "a" in text.lower()  # a number always has a point; the others are NaN and Infinity


@given(DOCUMENTS)
def test_a_walk_of_ours_and_pymongo_decode_the_same(document: dict[str, Any]) -> None:
    data = bson.encode(document)
    part = debezium_json.decode(data)
    walked = debezium_json._walked(data)
    assert debezium_json.strict(part.fields) == debezium_json.strict(walked)
    assert debezium_json.relaxed_update(part.fields) == debezium_json.relaxed_update(walked)
