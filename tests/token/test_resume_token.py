"""Resume tokens: vectors, every token that real servers made, and the rules a server checks."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Timestamp, json_util
from hypothesis import given
from hypothesis import strategies as st

from tailrace import raw
from tailrace.errors import InvalidResumeToken
from tailrace.token import ResumeToken, TokenData, TokenKind, event_identifier

UUID = bytes.fromhex("6948df8014bd4e0488427668d9c001f5")
TIME = Timestamp(1794770017, 3)
KEY = bson.encode({"_id": 1})


def vectors(shared: Path, name: str) -> list[dict[str, Any]]:
    return json.loads((shared / "conformance" / "token-vectors.json").read_text())[name]


def data_of(vector: dict[str, Any]) -> TokenData:
    identifier = vector["eventIdentifier"]
    return TokenData(
        Timestamp(*vector["ts"]),
        vector["version"],
        TokenKind(vector["tokenType"]),
        vector["txnOpIndex"],
        vector["fromInvalidate"],
        bytes.fromhex(vector["uuid"]) if vector["uuid"] else None,
        bson.encode(json_util.loads(json.dumps(identifier))) if identifier else None,
        vector.get("fragmentNum"),
    )


def test_vectors_encode_and_decode(shared_dir: Path) -> None:
    cases = vectors(shared_dir, "literal") + vectors(shared_dir, "own")
    assert len(cases) >= 60
    for case in cases:
        token = ResumeToken.from_hex(case["hex"], bytes.fromhex(case["typeBits"] or ""))
        assert token.decode() == data_of(case)
        made = ResumeToken.encode(data_of(case))
        assert (made.hex, made.type_bits) == (token.hex, token.type_bits)


def test_invalid_vectors_give_the_code_of_the_server(shared_dir: Path) -> None:
    for case in vectors(shared_dir, "invalid"):
        token = json_util.loads(json.dumps(case["token"]))
        with pytest.raises(InvalidResumeToken) as caught:
            ResumeToken.parse(token).decode()
        assert caught.value.server_code == case["code"], case


@pytest.mark.parametrize(
    "recording", ["4.2.6", "5.0.4", "6.0.5", "6.0.5.extra", "7.0.28", "7.0.28.extra", "sharded-6.0.5"]
)
def test_every_recorded_token_is_rebuilt_from_its_parts(recordings: Path, recording: str) -> None:
    path = recordings / f"{recording}.jsonl.gz"
    with gzip.open(path, "rt") as lines:
        tokens = [token for line in lines for token in tokens_in(json.loads(line))]
    assert len(tokens) > 500
    for token in tokens:
        parsed = ResumeToken.parse(token)
        data = parsed.decode()
        made = ResumeToken.encode(data)
        assert made.to_bson() == token
        assert parsed.cluster_time == data.cluster_time
        if data.is_high_water_mark:
            assert ResumeToken.high_water_mark(data.cluster_time, data.version) == made


def tokens_in(line: dict[str, Any]) -> list[bytes]:
    """The token documents of a line of a recording, as bytes."""
    if line["kind"] == "event" and "bson" in line:
        identifier = raw.field(base64.b64decode(line["bson"]), b"_id")
        whole = identifier is not None and raw.find(identifier.data, b"_data") is not None
        return [identifier.data] if whole else []
    token = line.get("pbrt") if line["kind"] == "batch" else None
    return [bson.encode(json_util.loads(json.dumps(token)))] if token else []


PARTS = st.builds(
    TokenData,
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.integers(0, 2),
    txn_op_index=st.integers(0, 2**31 - 1),
    uuid=st.binary(min_size=16, max_size=16),
    event_identifier=st.integers(-(2**31), 2**31 - 1).map(lambda n: bson.encode({"_id": n})),
)


@given(PARTS, st.booleans())
def test_parts_come_back(data: TokenData, invalidate: bool) -> None:
    if invalidate and data.version:
        data = replace(data, from_invalidate=True)
    assert ResumeToken.encode(data).decode() == data
    assert ResumeToken.parse(ResumeToken.encode(data).to_bson()).decode() == data
    assert ResumeToken.parse(ResumeToken.encode(data).to_document()).decode() == data


def order(data: TokenData) -> tuple[Any, ...]:
    number = bson.decode(data.event_identifier)["_id"]
    return data.cluster_time, data.version, data.txn_op_index, data.uuid, number


@given(PARTS, PARTS, st.booleans())
def test_bytes_order_as_the_parts_do(one: TokenData, other: TokenData, same_time: bool) -> None:
    if same_time:
        other = TokenData(
            one.cluster_time,
            one.version,
            txn_op_index=one.txn_op_index,
            uuid=other.uuid,
            event_identifier=other.event_identifier,
        )
    first, second = ResumeToken.encode(one), ResumeToken.encode(other)
    assert (first < second) == (order(one) < order(other))
    assert (first == second) == (order(one) == order(other))
    assert (first.hex < second.hex) == (first < second)


def test_order_within_one_time() -> None:
    event = TokenData(TIME, uuid=UUID, event_identifier=KEY)
    steps = [
        ResumeToken.high_water_mark(Timestamp(TIME.time, TIME.inc - 1)),
        ResumeToken.high_water_mark(TIME),
        ResumeToken.encode(event),
        ResumeToken.encode(replace(event, from_invalidate=True)),
        ResumeToken.encode(TokenData(TIME, txn_op_index=1, uuid=UUID, event_identifier=KEY)),
        ResumeToken.high_water_mark(Timestamp(TIME.time, TIME.inc + 1)),
    ]
    assert sorted(set(steps)) == steps
    assert len(set(steps)) == len(steps)
    assert all(a <= b and b >= a and b > a and a != b for a, b in pairwise(steps))


def test_what_servers_accept() -> None:
    token = ResumeToken.encode(TokenData(TIME, uuid=UUID, event_identifier=KEY))
    assert ResumeToken.from_hex(token.hex.lower()) == token
    assert ResumeToken.from_hex(token.hex + "04FF").decode() == token.decode()
    assert ResumeToken.parse({"_data": token.hex, "more": 1}) == token
    assert token != "another type"


@pytest.mark.parametrize("version", [1, 2])
def test_the_text_for_logs_holds_no_key(version: int) -> None:
    key = bson.encode({"_id": "someone"})
    identifier = bson.encode({"operationType": "insert", "documentKey": {"_id": "someone"}}) if version == 2 else key
    token = ResumeToken.encode(TokenData(TIME, version, uuid=UUID, event_identifier=identifier))
    assert b"someone".hex().upper() in token.hex
    assert str(token) == f"{token.hex[:18]}..."
    assert ResumeToken.high_water_mark(TIME).hex.startswith(token.hex[:18])
    mark = ResumeToken.high_water_mark(TIME, version)
    assert str(mark) == mark.hex


def test_identifiers_by_version() -> None:
    key = bson.encode({"_id": 1})
    description = bson.encode({"to": {"db": "d", "coll": "c"}})
    assert event_identifier(1, b"insert", key) == key
    assert event_identifier(1, b"drop", None) is None
    create = bson.encode({"operationType": "create", "operationDescription": {}})
    assert event_identifier(1, b"create", None, raw.EMPTY) == create
    assert event_identifier(2, b"insert", key) == bson.encode({"operationType": "insert", "documentKey": {"_id": 1}})
    assert event_identifier(2, b"drop", None) == bson.encode({"operationType": "drop"})
    assert event_identifier(2, b"rename", None, description) == bson.encode(
        {"operationType": "rename", "operationDescription": {"to": {"db": "d", "coll": "c"}}}
    )


def key_of(*values: raw.Value) -> str:
    from tailrace.token import keystring

    return keystring.encode(list(values))[0].hex()


NOW = raw.Value(raw.TIMESTAMP, bytes(8))
INT = {n: raw.Value(raw.INT32, raw.int32(n)) for n in (-1, 0, 1, 2, 3, 7, 128)}
FALSE = raw.Value(raw.BOOL, b"\0")
BIN = raw.Value(raw.BINARY, raw.binary(4, UUID))
DOC = raw.Value(raw.DOCUMENT, KEY)
NULL = raw.Value(raw.NULL, b"")


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([NOW], 50796),
        ([NOW, FALSE], 50854),
        ([NOW, INT[3]], 50795),
        ([NOW, INT[1]], 51055),
        ([NOW, INT[1], FALSE], 51056),
        ([NOW, INT[1], INT[7]], 51057),
        ([NOW, INT[1], INT[128]], 50793),
        ([NOW, INT[1], INT[128], FALSE], 50855),
        ([NOW, INT[1], INT[128], INT[-1]], 50794),
        ([NOW, INT[1], INT[128], INT[0]], 50872),
        ([NOW, INT[1], INT[128], INT[0], INT[0]], 50870),
        ([NOW, INT[2], INT[128], INT[0], FALSE], 6189500),
        ([NOW, INT[1], INT[128], INT[0], FALSE, DOC], 207),
        ([NOW, INT[1], INT[0], INT[0], FALSE, BIN, DOC], 6189504),
        ([NOW, INT[2], INT[128], INT[0], FALSE, NULL], 6189501),
        ([NOW, INT[1], INT[128], INT[0], FALSE, BIN, BIN], 6189503),
        ([NOW, INT[1], INT[128], INT[0], FALSE, BIN, DOC, INT[1]], 40646),
        ([NOW, INT[2], INT[128], INT[0], FALSE, BIN, DOC, INT[-1]], 7182501),
        ([NOW, INT[2], INT[128], INT[0], FALSE, BIN, DOC, INT[1], INT[1]], 40646),
    ],
)
def test_each_rule_has_the_code_of_the_server(values: list[raw.Value], code: int) -> None:
    with pytest.raises(InvalidResumeToken) as caught:
        ResumeToken.from_hex(key_of(*values)).decode()
    assert caught.value.server_code == code


def test_older_servers_know_fewer_versions() -> None:
    token = ResumeToken.encode(TokenData(TIME, 2, uuid=UUID, event_identifier=KEY, fragment=1))
    with pytest.raises(InvalidResumeToken, match="only supports version 0 or 1") as caught:
        token.decode(newest_version=1)
    assert caught.value.server_code == 50795
    with pytest.raises(InvalidResumeToken) as caught:
        token.decode(fragments=False)
    assert caught.value.server_code == 40646


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (TokenData(TIME, kind=TokenKind.HIGH_WATER_MARK, uuid=UUID), 6189505),
        (TokenData(TIME, event_identifier=KEY), 50788),
        (TokenData(TIME, 2), 6189502),
        (TokenData(TIME, uuid=UUID, event_identifier=KEY, fragment=0), 7182504),
    ],
)
def test_tokens_no_server_would_read_are_not_made(data: TokenData, code: int) -> None:
    with pytest.raises(InvalidResumeToken) as caught:
        ResumeToken.encode(data)
    assert caught.value.server_code == code


def test_version_0_has_no_high_water_mark() -> None:
    with pytest.raises(InvalidResumeToken, match="version 0"):
        ResumeToken.high_water_mark(TIME, version=0)
    assert ResumeToken.high_water_mark(TIME, 2).decode().is_high_water_mark
    assert ResumeToken.high_water_mark(TIME).hex == f"82{TIME.time:08X}{TIME.inc:08X}2B0229296E04"


@given(st.binary(max_size=80), st.binary(max_size=8))
def test_any_bytes_raise_only_the_own_error(key: bytes, bits: bytes) -> None:
    for candidate in (key, b"\x82" + bytes(8) + b"\x2b\x02\x2c\x01\x00\x29\x6e" + key):
        try:
            data = ResumeToken(candidate, bits).decode()
        except InvalidResumeToken as error:
            assert error.server_code != 260  # noqa: PT017
        else:
            assert isinstance(data, TokenData)


@given(st.binary(max_size=60))
def test_any_document_raises_only_the_own_errors(data: bytes) -> None:
    for token in ({"_data": data.decode("latin-1")}, {"_data": data}, {"_data": "82", "_typeBits": data}):
        with pytest.raises(InvalidResumeToken):
            ResumeToken.parse(token).decode()
