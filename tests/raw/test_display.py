"""Whatever a server stores can be shown to people."""

from __future__ import annotations

import json

import pytest
from bson import Binary, Regex

import hostile_bson
from tailrace import raw
from tailrace.errors import BsonMalformed
from tailrace.raw.display import decode_for_display, text_for_display


def well_formed() -> list[tuple[str, bytes]]:
    """Hostile elements whose lengths are right, so that the document could be stored."""
    found = []
    for label, element in hostile_bson.elements():
        for document in hostile_bson.documents(element):
            try:
                raw.validate(document)
            except BsonMalformed:
                continue
            found.append((label, document))
    return found


def test_everything_that_is_well_formed_has_a_text() -> None:
    documents = well_formed()
    assert len(documents) > 150
    for label, document in documents:
        for canonical in (False, True):
            assert json.loads(text_for_display(document, canonical=canonical)), label


@pytest.mark.parametrize(
    ("kind", "data", "shown"),
    [
        (raw.STRING, raw.string(b"a\xff"), "a\ufffd"),
        (raw.REGEX, b"\xff\0i\0", Regex("\ufffd", "i")),
        (raw.BINARY, raw.binary(2, raw.int32(99) + b"abc"), raw.int32(99) + b"abc"),
        (raw.BINARY, raw.binary(2, b"ab"), b"ab"),
        (raw.BINARY, raw.binary(4, b"abc"), b"abc"),
        (raw.BINARY, raw.binary(5, b"abc"), Binary(b"abc", 5)),
    ],
)
def test_what_drivers_refuse(kind: int, data: bytes, shown: object) -> None:
    document = raw.document(raw.element(kind, b"v", data))
    nested = raw.document(raw.element(raw.DOCUMENT, b"a", raw.document(raw.element(raw.ARRAY, b"b", document))))
    assert decode_for_display(document) == {"v": shown}
    assert decode_for_display(nested) == {"a": {"b": [shown]}}


def test_a_decimal_of_too_many_digits_is_zero_as_for_the_server() -> None:
    for bits, text in ((0x3040 << 112 | 10**34 + 5, "0"), (0xB040 << 112 | 10**34 + 5, "-0")):
        document = raw.document(raw.element(raw.DECIMAL128, b"v", bits.to_bytes(16, "little")))
        assert json.loads(text_for_display(document)) == {"v": {"$numberDecimal": text}}
