"""Which of two records of a document is the newer one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from bson.decimal128 import Decimal128

from tailrace import raw
from tailrace.fold.documents import is_moved, is_superseded
from tailrace.raw import Value, from_python


@dataclass(frozen=True)
class Record:
    operation: str
    document_key: bytes
    moment: tuple[int, str] = (7, "token")


def key(**fields: object) -> bytes:
    values = {name: value if isinstance(value, Value) else from_python(value) for name, value in fields.items()}
    return raw.document(*(raw.element(value.kind, name.encode(), value.data) for name, value in values.items()))


ODD = [
    Value(raw.DATE, raw.int64(2**62)),
    Value(raw.STRING, raw.string(b"\xff")),
    Value(raw.BINARY, raw.binary(2, b"ab")),
    Value(raw.DECIMAL128, (0x1FFFF << 110).to_bytes(16, "little")),
]


@pytest.mark.parametrize("odd", ODD)
def test_the_halves_of_a_moved_document_are_told_apart_whatever_its_key_is(odd: Value) -> None:
    old, new = Record("delete", key(_id=odd, k=1)), Record("insert", key(_id=odd, k=2))
    assert is_moved(old, new)
    assert is_superseded(old, new)
    assert not is_superseded(new, old)
    assert is_moved(Record("delete", key(_id=1, k=odd)), Record("insert", key(_id=1, k="x")))
    assert not is_moved(Record("delete", key(_id=1, k=odd)), Record("insert", key(_id=1, k=odd)))


def test_equal_numbers_of_two_types_are_one_shard_key() -> None:
    for one, other in ((5, 5.0), (5, Decimal128("5.0")), (0.0, -0.0)):
        assert not is_moved(Record("delete", key(_id=1, k=one)), Record("insert", key(_id=1, k=other)))
