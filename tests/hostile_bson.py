"""Elements that no server writes, by name, and documents that hold one of them at a chosen place.

What the kernel makes of them is compared with what the reference does: the same bytes, or the same error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from bson.decimal128 import Decimal128

from tailrace import raw

LENGTHS = (-(2**31), -5, -1, 0, 1, 4, 6, 2**31 - 5, 2**31 - 4, 2**31 - 1)
PREFIXED = (raw.STRING, raw.DOCUMENT, raw.ARRAY, raw.BINARY, raw.CODE, raw.SYMBOL, raw.CODE_WITH_SCOPE, raw.DB_POINTER)
NOT_UTF8 = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\xe2\x82", b"\x80a")
DATES = (-(2**63), -(2**63) + 1, -62135596800000, -62135596800001, -1, 253402300799999, 253402300800000, 2**63 - 1)
DOUBLES = (0x7FF8000000000001, 0x7FF0000000000001, 0xFFF8DEADBEEF0000, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 1)
DECIMALS = (
    0x1FFFF << 110,  # a signalling NaN with a payload
    0x7C00 << 112 | 1,  # a NaN with a payload
    0xFC00 << 112,  # a negative NaN
    0x7800 << 112 | 7,  # an infinity with digits
    0x6000 << 112 | 5,  # more digits than there are: read as zero
    0x3040 << 112 | 10**34,  # one more than 34 digits hold
    0xB040 << 112 | 10**34 + 5,  # the same, and no rounding makes it fit
    0x5FFE << 112 | 1,  # the greatest exponent
    1,  # the least
    0xB040 << 112,  # minus zero
)


def decimals() -> Iterator[Decimal128]:
    """Decimals that servers store as they come, and read in their own way."""
    for bits in DECIMALS:
        yield Decimal128.from_bid(bits.to_bytes(16, "little"))


def elements() -> Iterator[tuple[str, bytes]]:
    """Elements named `v`, most of them malformed, with a label."""
    for kind in PREFIXED:
        for length in LENGTHS:
            yield f"type {kind} of length {length}", raw.element(kind, b"v", raw.int32(length) + b"\0" * 16)
    for kind in (0x14, 0x20, 0x7E, 0x80, 0xFE):
        yield f"type {kind}", raw.element(kind, b"v", b"\0" * 8)
    for text in NOT_UTF8:
        for kind in (raw.STRING, raw.CODE, raw.SYMBOL):
            yield f"type {kind} of {text!r}", raw.element(kind, b"v", raw.string(text))
        yield f"the name {text!r}", raw.element(raw.NULL, text, b"")
        yield f"the pattern {text!r}", raw.element(raw.REGEX, b"v", text + b"\0i\0")
        yield f"the pointer {text!r}", raw.element(raw.DB_POINTER, b"v", raw.string(text) + b"x" * 12)
    for number in DATES:
        yield f"the date {number}", raw.element(raw.DATE, b"v", raw.int64(number))
    for bits in DOUBLES:
        yield f"the double {bits:x}", raw.element(raw.DOUBLE, b"v", struct.pack("<Q", bits))
    for bits in DECIMALS:
        yield f"the decimal {bits:x}", raw.element(raw.DECIMAL128, b"v", bits.to_bytes(16, "little"))
    for names in ((b"1", b"0"), (b"0", b"0"), (b"", b"x"), (b"00", b"-1"), (b"5", b"4294967296")):
        array = raw.document(*(raw.element(raw.NULL, name, b"") for name in names))
        yield f"an array of {names}", raw.element(raw.ARRAY, b"v", array)
    twice = raw.element(raw.INT32, b"v", raw.int32(1)) + raw.element(raw.STRING, b"v", raw.string("2"))
    yield "a field twice", twice
    yield "a nested field twice", raw.element(raw.DOCUMENT, b"v", raw.document(twice))
    yield "undefined", raw.element(raw.UNDEFINED, b"v", b"")
    yield "a symbol", raw.element(raw.SYMBOL, b"v", raw.string("s"))
    yield "a pointer", raw.element(raw.DB_POINTER, b"v", raw.string("a.b") + b"x" * 12)
    yield "a boolean of 2", raw.element(raw.BOOL, b"v", b"\x02")
    yield "a string without its end", raw.element(raw.STRING, b"v", raw.int32(3) + b"abc")
    yield "old binary", raw.element(raw.BINARY, b"v", raw.binary(2, raw.int32(99) + b"abc"))
    yield "old binary without its inner length", raw.element(raw.BINARY, b"v", raw.binary(2, b"ab"))
    yield "binary of the subtype 255", raw.element(raw.BINARY, b"v", raw.binary(255, b"abc"))
    yield "a UUID of 3 bytes", raw.element(raw.BINARY, b"v", raw.binary(4, b"abc"))
    scope = raw.string("f") + raw.document(twice)
    yield "code with a scope", raw.element(raw.CODE_WITH_SCOPE, b"v", raw.int32(len(scope) + 4) + scope)
    yield "code whose scope is longer", raw.element(raw.CODE_WITH_SCOPE, b"v", raw.int32(len(scope) + 4) + scope[:-1])
    yield "a name of two thousand bytes", raw.element(raw.NULL, b"n" * 2_000, b"")
    yield "a name without its end", b"\x0av"


def documents(element: bytes) -> Iterator[bytes]:
    """Hold an element at the top, inside a document, inside an array, and behind a field of the same size."""
    usual = raw.element(raw.INT32, b"_id", raw.int32(1))
    yield raw.document(usual, element)
    yield raw.document(usual, raw.element(raw.DOCUMENT, b"a", raw.document(element)))
    yield raw.document(usual, raw.element(raw.ARRAY, b"a", raw.document(element.replace(b"v", b"0", 1))))
    yield raw.document(usual, raw.element(raw.DOCUMENT, b"a", nested(element, 5)))


def nested(element: bytes, depth: int) -> bytes:
    """Put an element so many documents and arrays deep."""
    document = raw.document(element)
    for level in range(depth):
        kind, name = (raw.ARRAY, b"0") if level % 2 else (raw.DOCUMENT, b"d")
        document = raw.document(raw.element(kind, name, document))
    return document


def deep_and_large() -> Iterator[tuple[str, bytes]]:
    """Documents at and beyond what servers allow: 180 deep, and 16 MB."""
    leaf = raw.element(raw.INT32, b"v", raw.int32(1))
    usual = raw.element(raw.INT32, b"_id", raw.int32(1))
    for depth in (98, 99, 100, 101, 102, 179, 180, 200, 260):
        yield f"{depth} deep", raw.document(usual, raw.element(raw.DOCUMENT, b"a", nested(leaf, depth)))
    text = raw.element(raw.STRING, b"v", raw.string(b"x" * (16 * 1024 * 1024)))
    yield "16 MB of text", raw.document(usual, text)
    many = b"".join(raw.element(raw.INT32, b"%d" % number, raw.int32(number)) for number in range(50_000))
    yield "an array of 50,000", raw.document(usual, raw.element(raw.ARRAY, b"v", raw.document(many)))
