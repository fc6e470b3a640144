"""Change events with any fields, some of them odd, and bytes that are no event any more: what the kernel must bear."""

from __future__ import annotations

import random

import bson
from bson import Code, Regex, Timestamp
from hypothesis import strategies as st

from bson_strategies import DOCUMENTS, NAMES, VALUES
from tailrace import raw

TOKEN = {"_data": "8265F0A1B2000000072B0229296E04"}
TWICE = raw.element(raw.INT32, b"v", raw.int32(1)) * 2
ODD_ELEMENTS = st.one_of(
    st.tuples(NAMES, VALUES).map(lambda pair: raw.body(bson.encode(dict([pair])))),
    st.sampled_from(
        [
            TWICE,
            raw.element(raw.SYMBOL, b"v", raw.string("s")),
            raw.element(raw.UNDEFINED, b"v", b""),
            raw.element(raw.DB_POINTER, b"v", raw.string("a.b") + b"0123456789ab"),
            raw.element(raw.BOOL, b"v", b"\x02"),
            raw.element(raw.ARRAY, b"v", raw.document(raw.element(raw.NULL, b"7", b""))),
            raw.element(raw.STRING, b"v", raw.string(b"\xff\xfe")),
            raw.element(raw.REGEX, b"v", b"a\0xi\0"),
            raw.element(raw.STRING, b":", raw.string(": and , and :")),
            raw.body(bson.encode({"v": Code("f", {"a": [Code("g")], "b": Regex("x", "im")})})),
            raw.element(raw.DOUBLE, b"v", b"\x01\0\0\0\0\0\xf8\x7f"),
        ]
    ),
    st.binary(min_size=8, max_size=8).map(lambda data: raw.element(raw.DOUBLE, b"d", data)),
    st.binary(min_size=8, max_size=8).map(lambda data: raw.element(raw.DATE, b"v", data)),
    st.integers(-(2**45), 2**48).map(lambda number: raw.element(raw.DATE, b"v", raw.int64(number))),
    st.binary(min_size=16, max_size=16).map(lambda data: raw.element(raw.DECIMAL128, b"e", data)),
    st.tuples(st.integers(0, 10**34 - 1), st.integers(0, 12287), st.booleans()).map(
        lambda parts: raw.element(
            raw.DECIMAL128, b"v", (parts[2] << 127 | parts[1] << 113 | parts[0]).to_bytes(16, "little")
        )
    ),
    st.tuples(st.integers(0, 9) | st.sampled_from([128, 254, 255]), st.binary(max_size=20)).map(
        lambda pair: raw.element(raw.BINARY, b"f", raw.binary(*pair))
    ),
    st.text(max_size=30).map(lambda text: raw.element(raw.STRING, b"a", raw.string(text))),
    st.floats().map(lambda number: raw.element(raw.DOUBLE, b"v", raw.double(number))),
    st.sampled_from(["$oid", "$date", "$ref", "$id", "$other"]).flatmap(
        lambda name: VALUES.map(lambda value: raw.body(bson.encode({"v": {name: value}})))
    ),
)
BODIES = st.lists(ODD_ELEMENTS, max_size=5).map(lambda elements: raw.document(*elements))
UPDATES = st.fixed_dictionaries(
    {},
    optional={
        "updatedFields": DOCUMENTS | st.just({"a": {"b": 1}, "price": 2.5}),
        "removedFields": st.lists(st.text(max_size=5) | st.just("a"), max_size=3),
        "truncatedArrays": st.lists(st.just({"field": "v", "newSize": 1}), max_size=1),
    },
).map(bson.encode)
OPERATIONS = st.sampled_from(["insert", "update", "replace", "delete", "read", "drop", "rename", "invalidate"])


@st.composite
def change_events(draw: st.DrawFn) -> bytes:
    """Events with any fields, some of them odd."""
    parts = [
        raw.body(bson.encode({"_id": TOKEN})),
        raw.body(bson.encode({"operationType": draw(OPERATIONS)})),
        raw.body(bson.encode({"clusterTime": Timestamp(0x65F0A1B2, 7)})),
        raw.body(bson.encode({"ns": draw(st.sampled_from([{"db": "shop", "coll": "Bücher"}, {"db": "s"}, {}]))})),
    ]
    optional = {
        b"wallTime": st.integers(-(2**50), 2**50).map(lambda n: (raw.DATE, raw.int64(n))),
        b"fullDocument": BODIES.map(lambda doc: (raw.DOCUMENT, doc)) | st.just((raw.NULL, b"")),
        b"fullDocumentBeforeChange": BODIES.map(lambda doc: (raw.DOCUMENT, doc)),
        b"documentKey": BODIES.map(lambda doc: (raw.DOCUMENT, doc))
        | VALUES.map(lambda value: (raw.DOCUMENT, bson.encode({"_id": value}))),
        b"updateDescription": UPDATES.map(lambda doc: (raw.DOCUMENT, doc)),
        b"lsid": st.just((raw.DOCUMENT, bson.encode({"id": bson.Binary(b"1" * 16, 4)}))),
        b"txnNumber": st.integers(0, 2**40).map(lambda n: (raw.INT64, raw.int64(n))),
        b"recovered": st.just((raw.BOOL, b"\x01")),
        b"imageFetched": st.just((raw.BOOL, b"\x01")),
        b"to": st.just((raw.DOCUMENT, bson.encode({"db": "a", "coll": "b"}))),
    }
    for name, values in optional.items():
        if draw(st.booleans()):
            kind, data = draw(values)
            parts.append(raw.element(kind, name, data))
    if draw(st.integers(0, 3)) == 0:
        parts = draw(st.permutations(parts))
    return raw.document(*parts)


def mutated(chance: random.Random, event: bytes) -> bytes:
    """Change, repeat or cut out a few bytes; mostly the length of the whole is made right again."""
    data = bytearray(event)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(data) or 1)
        choice = chance.randrange(5)
        if choice == 0:
            del data[place : place + chance.randint(1, 9)]
        elif choice == 1:
            data[place:place] = data[place : place + chance.randint(1, 9)]
        elif choice == 2:
            data[place : place + 4] = chance.choice(
                (b"\xff\xff\xff\xff", b"\0\0\0\x80", b"\xff\xff\xff\x7f", b"\5\0\0\0")
            )
        else:
            data[place : place + 1] = bytes([chance.randrange(256)])
    if chance.random() < 0.9 and len(data) >= 4:
        data[:4] = len(data).to_bytes(4, "little")
    return bytes(data)
