"""`raw` against pymongo's own codec, and against bytes that are no BSON."""

from __future__ import annotations

import re

import bson
import pytest
from bson import Binary, DBRef, Int64, ObjectId, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from bson_strategies import DOCUMENTS
from tailrace import raw
from tailrace.errors import BsonMalformed

# Types that pymongo does not write: undefined, DBPointer, symbol.
OLD = raw.document(
    raw.element(raw.UNDEFINED, b"u", b""),
    raw.element(raw.DB_POINTER, b"p", raw.string("db.c") + bytes(12)),
    raw.element(raw.SYMBOL, b"s", raw.string("sym")),
    raw.element(raw.INT32, b"last", raw.int32(7)),
)


@given(DOCUMENTS)
def test_walking_finds_the_elements_pymongo_finds(python: dict) -> None:
    doc = bson.encode(python)
    raw.validate(doc)
    names = []
    for kind, name, start, end in raw.elements(doc):
        names.append(name.decode())
        assert raw.value_end(doc, kind, start) == end
        assert raw.field(doc, name) == (kind, doc[start:end])
        assert raw.from_python(raw.to_python(kind, doc[start:end])) == (kind, doc[start:end])
    assert names == list(python)


@given(DOCUMENTS)
def test_splicing_the_elements_gives_the_document_back(python: dict) -> None:
    doc = bson.encode(python)
    parts = [raw.element(kind, name, doc[a:b]) for kind, name, a, b in raw.elements(doc)]
    assert raw.document(*parts) == doc
    assert raw.append(raw.EMPTY, raw.body(doc)) == doc


@given(DOCUMENTS, st.data())
def test_without_leaves_the_others_in_order(python: dict, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(sorted(python)))) if python else set()
    rest = {name: value for name, value in python.items() if name not in gone}
    names = [name.encode() for name in gone]
    assert raw.without(bson.encode(python), *names) == bson.encode(rest)


@given(DOCUMENTS, st.data())
def test_damaged_bytes_raise_only_the_own_error(python: dict, data: st.DataObject) -> None:
    doc = bytearray(bson.encode(python))
    for _ in range(data.draw(st.integers(1, 4))):
        doc[data.draw(st.integers(0, len(doc) - 1))] = data.draw(st.integers(0, 255))
    walk_everything(bytes(doc[: data.draw(st.integers(0, len(doc)))]))


@given(st.binary(max_size=200))
def test_any_bytes_raise_only_the_own_error(doc: bytes) -> None:
    walk_everything(doc)
    walk_everything(raw.int32(len(doc) + 5) + doc + b"\0")


def walk_everything(doc: bytes) -> None:
    """Call every reader; each must end, and fail only with an offset inside or at the end."""
    readers = [raw.validate, raw.body, lambda d: list(raw.elements(d)), lambda d: raw.find(d, b"a")]
    readers += [lambda d: raw.without(d, b"a"), lambda d: raw.find_path(d, b"a", b"0", b"")]
    readers += [raw.int32_at, raw.int64_at, raw.double_at, raw.timestamp_at, raw.string_at]
    readers += [raw.binary_at, *(lambda d, k=k: raw.value_end(d, k, 0) for k in range(256))]
    for reader in readers:
        try:
            reader(doc)
            offset = 0
        except BsonMalformed as error:
            offset = error.offset
        assert 0 <= offset <= len(doc)


def test_types_that_only_old_servers_write() -> None:
    raw.validate(OLD)
    assert [kind for kind, *_ in raw.elements(OLD)] == [6, 12, 14, 16]
    assert raw.to_python(*raw.field(OLD, b"p")) == DBRef("db.c", ObjectId(bytes(12)))
    assert raw.to_python(*raw.field(OLD, b"s")) == "sym"


@pytest.mark.parametrize(
    ("doc", "offset", "message"),
    [
        (b"", 0, "ends inside its length"),
        (b"\x05\0\0", 0, "ends inside its length"),
        (b"\x04\0\0\0\0", 0, "length 4"),
        (b"\xff\xff\xff\xff\0", 0, "length -1"),
        (b"\x06\0\0\0\0", 0, "length 6"),
        (b"\x05\0\0\0\1", 4, "zero byte"),
        (b"\x05\0\0\0\0\0", 5, "bytes follow"),
        (b"\x08\0\0\0\x10ab\0", 5, "no end"),
        (b"\x08\0\0\0\x10a\0\0", 7, "4 bytes does not fit"),
        (b"\x09\0\0\0\x20a\0\0\0", 7, "no type 0x20"),
        (raw.document(b"\x02a\0\x09\0\0\0x\0"), 7, "does not fit"),
        (raw.document(b"\x02a\0\0\0\0\0"), 7, "length 0"),
        (raw.document(b"\x02a\0\x02\0\0\0xy"), 12, "zero byte"),
        (raw.document(b"\x03a\0\x04\0\0\0\0"), 7, "length 4"),
        (raw.document(b"\x08a\0\x02"), 7, "boolean"),
        (raw.document(b"\x0ba\0abc\0de"), 11, "no end"),
        (raw.document(b"\x0ca\0\x01\0\0\0\0" + bytes(11)), 7, "DBPointer"),
        (raw.document(b"\x0fa\0\x0f\0\0\0\x01\0\0\0\0\x05\0\0\0\0\0"), 7, "code with scope"),
    ],
)
def test_an_error_says_where(doc: bytes, offset: int, message: str) -> None:
    with pytest.raises(BsonMalformed, match=re.escape(message)) as caught:
        raw.validate(doc)
    assert caught.value.offset == offset


def test_nesting_without_end_is_refused() -> None:
    doc = raw.EMPTY
    for _ in range(raw.MAX_DEPTH):
        doc = raw.document(raw.element(raw.DOCUMENT, b"a", doc))
    with pytest.raises(BsonMalformed, match="too deep"):
        raw.validate(doc)


def test_paths_lead_through_documents_and_arrays() -> None:
    doc = bson.encode({"a": {"b": [1, {"c": "x"}]}, "d": 1})
    kind, start, _ = raw.find_path(doc, b"a", b"b", b"1", b"c")
    assert (kind, raw.string_at(doc, start)) == (raw.STRING, b"x")
    assert raw.find_path(doc, b"d", b"x") is None
    assert raw.find_path(doc, b"a", b"x", b"y") is None


def test_scalars_are_written_as_pymongo_writes_them() -> None:
    python = {"i": 5, "l": Int64(-9), "d": 1.5, "s": "é", "t": Timestamp(7, 8), "b": True}
    doc = raw.document(
        raw.element(raw.INT32, b"i", raw.int32(5)),
        raw.element(raw.INT64, b"l", raw.int64(-9)),
        raw.element(raw.DOUBLE, b"d", raw.double(1.5)),
        raw.element(raw.STRING, b"s", raw.string("é")),
        raw.element(raw.TIMESTAMP, b"t", raw.timestamp(Timestamp(7, 8))),
        raw.element(raw.BOOL, b"b", raw.boolean(True)),
    )
    assert doc == bson.encode(python)
    values = {name: (kind, start) for kind, name, start, _ in raw.elements(doc)}
    assert [raw.number_at(doc, *values[n]) for n in (b"i", b"l", b"d", b"b")] == [5, -9, 1.5, None]
    assert raw.timestamp_at(doc, values[b"t"][1]) == Timestamp(7, 8)
    three = raw.array([raw.Value(raw.INT32, raw.int32(n)) for n in range(3)])
    assert three == bson.encode({"0": 0, "1": 1, "2": 2})
    assert raw.binary_at(raw.binary(4, b"x" * 16)) == (4, b"x" * 16)


def test_what_was_decoded_can_be_encoded_again() -> None:
    """pymongo decodes binaries of the subtype 255, and raises SystemError when it is to encode one."""
    inner = {"_id": 1, "list": [Binary(b"abc", 255), Binary(b"old", 2), {"deep": Binary(b"", 255)}], "n": Int64(5)}
    for value in (inner, {"a": inner}, {"v": Binary(b"abc", 255), "_id": Binary(b"x", 255)}):
        assert bson.decode(raw.encode(value)) == value
    assert raw.encode({"v": Binary(b"abc", 255)}) == raw.document(
        raw.element(raw.BINARY, b"v", raw.binary(255, b"abc"))
    )
    assert raw.from_python([Binary(b"abc", 255)]).kind == raw.ARRAY
    plain = {"v": [Binary(b"old", 2), {"x": None}], "_id": 1}
    with_it = raw.encode({**plain, "w": Binary(b"", 255)})
    assert with_it[4:].startswith(bson.encode(plain)[4:-1])
