"""Writes that show every BSON type to a capture, as `_id` and as value, in a snapshot and in the stream."""

from __future__ import annotations

import math
import uuid
from typing import Any

import bson
from bson import Binary, Code, DatetimeMS, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.database import Database

from tailrace import raw

_UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
NUMBERS: dict[str, Any] = {
    "int32": 7,
    "int32 least": -(2**31),
    "int64": Int64(7),
    "int64 most": Int64(2**63 - 1),
    "int64 least": Int64(-(2**63)),
    "double whole": 1.0,
    "double": 1.5,
    "double zero": -0.0,
    "double tenth": 0.1,
    "double small": 1e-7,
    "double below": 0.001,
    "double below that": 0.0009765625,
    "double ten millions": 1e7,
    "double below ten millions": 9999999.0,
    "double large": 1.7976931348623157e308,
    "double denormal": 5e-324,
    "double long": 123456789.12345678,
    "double 2e23": 2e23,
    "double nan": math.nan,
    "double infinity": math.inf,
    "double minus infinity": -math.inf,
    "decimal": Decimal128("1.50"),
    "decimal exponent": Decimal128("1E+6000"),
    "decimal small": Decimal128("-1E-6000"),
    "decimal nan": Decimal128("NaN"),
    "decimal infinity": Decimal128("-Infinity"),
    "decimal zeros": Decimal128("0.000000"),
    "decimal small exponent": Decimal128("1E-7"),
    "decimal minus zero": Decimal128("-0"),
    "decimal zero exponent": Decimal128("0E+3"),
    "decimal zero below": Decimal128("-0E-8"),
    "decimal digits": Decimal128("-1234567890123456789012345678901234"),
    "decimal digits exponent": Decimal128("1.234567890123456789012345678901234E-6143"),
    "decimal hundred": Decimal128("1.00E+2"),
    "double denormal 2": 1e-323,
    "double two digits": 1.2e-5,
    "double ten": 1e22,
    "double 2^53": 9007199254740993.0,
}
OTHERS: dict[str, Any] = {
    "string": "MyKey",
    "string empty": "",
    "string quotes": 'a "quoted" \\ / text',
    "string control": "\x01 \x00 \n\r\t\b\f \x7f \x85 \u2028 \u2029",
    "string beyond": "Köln 東京 \U0001f600 \ufffe </script> & ' < >",
    "document": {"b": 1, "a": {"c": [1, "x"]}},
    "document empty": {},
    "binary": Binary(b"\x00\x01\xff", 0),
    "binary empty": Binary(b"", 0),
    "binary old": Binary(b"abc", 2),
    "binary function": Binary(b"abc", 1),
    "binary user": Binary(b"abc", 128),
    "binary md5": Binary(b"0123456789abcdef", 5),
    "binary uuid old": Binary(_UUID.bytes, 3),
    "binary uuid": Binary(_UUID.bytes, 4),
    "binary uuid short": Binary(b"abc", 4),
    "object id": ObjectId("0123456789abcdef01234567"),
    "true": True,
    "false": False,
    "date": DatetimeMS(1_700_000_000_123),
    "date tenth": DatetimeMS(1_700_000_000_100),
    "date hundredth": DatetimeMS(1_700_000_000_120),
    "date epoch": DatetimeMS(0),
    "date second": DatetimeMS(1_700_000_000_000),
    "date before": DatetimeMS(-1),
    "date 9999": DatetimeMS(253402300799999),
    "date 10000": DatetimeMS(253402300800000),
    "date least": DatetimeMS(-(2**63)),
    "null": None,
    "code": Code("function() { return 1 }"),
    "code with scope": Code("f", {"a": Int64(1), "b": DatetimeMS(5)}),
    "timestamp": Timestamp(1_700_000_000, 3),
    "timestamp most": Timestamp(2**32 - 1, 2**32 - 1),
    "min key": MinKey(),
    "max key": MaxKey(),
}
"""Values that may be an `_id` too."""
_PLANE = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
CHARACTERS: dict[str, Any] = {
    **{f"characters {start:05x}": "".join(_PLANE[start : start + 4096]) for start in range(0, len(_PLANE), 4096)},
    "characters beyond": "".join(map(chr, range(0x10000, 0x110000, 251))),
    "characters quoted": 'x":"y",":\\": , {"a":1}\\',
    "names": {'a":"b': 1, "\\": {"ü\u0301\x7f": [2, {"c,d": ", "}]}, "\x01": 3, "": 4},
}
ONLY_VALUES: dict[str, Any] = {
    "array": [1, "x", [None, {"a": Int64(1)}]],
    "array empty": [],
    "regex": Regex('^a/"b', "imsx"),
    "regex plain": Regex("a", ""),
    "dbref": DBRef("orders", ObjectId("0123456789abcdef01234567"), "shop", extra=1),
    "nested everything": {"list": [DatetimeMS(1), Decimal128("2"), math.nan, {"deep": [Binary(b"x", 4)]}]},
}
_SYMBOL = raw.element(raw.SYMBOL, b"v", raw.string("symbol"))
_UNDEFINED = raw.element(raw.UNDEFINED, b"v", b"")
_POINTER = raw.element(raw.DB_POINTER, b"v", raw.string("shop.orders") + b"0123456789ab")
RARE: dict[str, bytes] = {"symbol": _SYMBOL, "undefined": _UNDEFINED, "pointer": _POINTER}
"""Deprecated types, which pymongo does not write."""
AMBIGUOUS: dict[str, Any] = {
    "like a long": {"$numberLong": "7"},
    "like an id": {"$oid": "0123456789abcdef01234567"},
    "dollar": {"$other": 1},
}
DUPLICATES = raw.element(raw.INT32, b"v", raw.int32(1)) + _SYMBOL + raw.element(raw.INT32, b"v", raw.int32(2))


def ids() -> list[bytes]:
    """Documents whose `_id` is of every type that an `_id` may be."""
    made = [bson.encode({"_id": value, "label": label}) for label, value in {**NUMBERS, **OTHERS}.items()]
    kept: list[bytes] = []
    seen: set[Any] = set()
    for document, (label, value) in zip(made, {**NUMBERS, **OTHERS}.items(), strict=True):
        same = _equal_as_id(label, value)
        if same not in seen:
            seen.add(same)
            kept.append(document)
    rare = [raw.element(raw.SYMBOL, b"_id", raw.string("a symbol")), raw.element(raw.DB_POINTER, b"_id", _POINTER[3:])]
    return kept + [raw.document(each, raw.element(raw.STRING, b"label", raw.string("rare"))) for each in rare]


def _equal_as_id(label: str, value: Any) -> Any:
    """Numbers that are equal are one `_id` to a server, whatever their types."""
    if label.startswith("decimal"):
        value = value.to_decimal()
    if label in NUMBERS:
        return "nan" if value != value else float(value) if math.isinf(value) else value
    return label


def values() -> list[bytes]:
    """Documents with a value `v` of every type."""
    every = {**NUMBERS, **OTHERS, **ONLY_VALUES, **CHARACTERS, **AMBIGUOUS}
    made = [bson.encode({"_id": f"value {label}", "v": value}) for label, value in every.items()]
    rare = {**RARE, "duplicates": DUPLICATES}
    return made + [raw.document(_text_id(f"value {label}"), element) for label, element in rare.items()]


def _text_id(text: str) -> bytes:
    return raw.element(raw.STRING, b"_id", raw.string(text))


def fill(database: Database[Any]) -> int:
    """Put everything there for a snapshot; gives how many documents that are."""
    documents = ids() + values()
    database.snapshotted.insert_many([RawBSONDocument(document) for document in documents])
    return len(documents)


def work(client: MongoClient[Any], database: Database[Any]) -> None:
    """Insert, update, replace and delete everything, then transactions and a last document called `the end`."""
    streamed, everything = database.streamed, {**NUMBERS, **OTHERS, **ONLY_VALUES, **CHARACTERS, **AMBIGUOUS}
    for document in ids() + values():
        streamed.insert_one(RawBSONDocument(document))
    for label, value in everything.items():
        streamed.update_one({"_id": f"value {label}"}, [{"$set": {"w": {"$literal": value}}}])
    changed = database.changed
    changed.insert_one({"_id": 1, "a": 1, "list": list(range(100)), "sub": {"x": 1, "y": 2}, "gone": 1, "p": "x" * 500})
    changed.update_one({"_id": 1}, {"$set": {"a": Int64(2), "sub.x": math.nan}, "$unset": {"gone": 1}})
    changed.update_one({"_id": 1}, [{"$set": {"list": {"$slice": ["$list", 50]}}}])
    changed.update_one({"_id": 1}, {"$set": {"list.3": DatetimeMS(5), "date": DatetimeMS(6), "dec": Decimal128("1.0")}})
    changed.update_one({"_id": 1}, {"$unset": {"a": 1}})
    changed.update_one({"_id": 1}, {"$push": {"list": {"$each": ["x"], "$slice": 10}}})
    changed.replace_one({"_id": 1}, {"whole": "new", "n": Int64(5)})
    changed.update_one({"_id": 1}, {"$set": {'odd \x1f \x7f ü\u0301 \U0001f600 \\ / "': 1}})
    changed.update_one({"_id": 1}, {"$unset": {'odd \x1f \x7f ü\u0301 \U0001f600 \\ / "': 1}})
    changed.update_one({"_id": 1}, {"$set": {"ключ": "значение", "a b": [1, {"c": 1.0}]}})
    for _ in range(2):
        with client.start_session() as session, session.start_transaction():
            changed.insert_one({"_id": "in a transaction"}, session=session)
            changed.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
            changed.delete_one({"_id": "in a transaction"}, session=session)
    changed.insert_one({"_id": {"z": 1, "a": [1, {"b": Binary(b"1", 4)}]}})
    changed.delete_many({})
    streamed.delete_many({})
    changed.insert_one({"_id": "the end"})
