"""KeyString: every value comes back, and bytes order as a real server orders the values."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64
from hypothesis import given
from hypothesis import strategies as st

from bson_strategies import VALUES
from tailrace import raw
from tailrace.errors import InvalidResumeToken
from tailrace.raw import Value
from tailrace.stand import ReplicaSet
from tailrace.token import ResumeToken, decimal128, keystring, type_bits

DIGITS = st.integers(1, 10**34 - 1)
DECIMALS = st.builds(
    lambda negative, digits, exponent: Decimal128(
        f"{'-' if negative else ''}{digits}E{max(-6176, min(exponent, 6111))}"
    ),
    st.booleans(),
    DIGITS | st.integers(1, 10**16) | st.integers(2**53 - 9, 2**64).map(lambda n: n * 10**14 + 1),
    st.just(-14) | st.integers(-6176, 6111) | st.integers(-50, 5) | st.integers(-360, -300) | st.integers(270, 310),
)
DOUBLES = st.floats() | st.integers(-(2**64), 2**64).map(float) | st.floats(1, 2**60)
INTEGERS = st.integers(-(2**63), 2**63 - 1).map(Int64) | st.integers(-(2**31), 2**31 - 1)
SPECIAL = st.sampled_from([Decimal128(text) for text in ("NaN", "Infinity", "-Infinity", "0", "-0E-6176", "0E+6111")])
NUMBERS = DECIMALS | DOUBLES | INTEGERS | SPECIAL


def round_trip(value: Value) -> Value:
    key, bits = keystring.encode([value])
    (back,) = keystring.decode(key, bits)
    return back


@given(NUMBERS)
def test_every_number_comes_back(number: Any) -> None:
    value = raw.from_python(number)
    if isinstance(number, float) and math.isnan(number):
        value = raw.from_python(math.nan)  # all NaNs of a type are one
    assert round_trip(value) == value


@given(VALUES)
def test_every_value_comes_back(python: Any) -> None:
    value = raw.from_python(python)
    assert round_trip(value) == value


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (raw.UNDEFINED, b""),
        (raw.DB_POINTER, raw.string("db.c") + bytes(range(12))),
        (raw.SYMBOL, raw.string("sym\0bol")),
        (raw.CODE, raw.string("f(\0)")),
        (raw.BINARY, raw.binary(0, bytes(254))),
        (raw.BINARY, raw.binary(0, bytes(255))),
        (raw.BINARY, raw.binary(2, raw.int32(3) + b"abc")),
        (raw.DATE, raw.int64(-(2**63))),
        (raw.REGEX, b"a.*\0imx\0"),
    ],
)
def test_types_that_pymongo_does_not_write_come_back(kind: int, data: bytes) -> None:
    assert round_trip(Value(kind, data)) == (kind, data)


def exact(number: Any) -> tuple[int, Any]:
    """A number as something Python compares without rounding: NaN first, then by value."""
    if isinstance(number, Decimal128):
        plain = decimal128.unpack(number.bid)
        if isinstance(plain, decimal128.Special):
            return (0, 0) if plain.nan else (1, -math.inf if plain.negative else math.inf)
        sign = -1 if plain.negative else 1
        return 1, sign * plain.coefficient * Fraction(10) ** plain.exponent
    if isinstance(number, float) and not math.isfinite(number):
        return (0, 0) if math.isnan(number) else (1, number)
    return 1, Fraction(number)


def nearest_double(number: Any) -> float:
    return float(number.to_decimal()) if isinstance(number, Decimal128) else float(number)


@given(NUMBERS, NUMBERS | st.none())
def test_bytes_order_as_numbers_do(one: Any, other: Any) -> None:
    if other is None:  # a neighbour: the same value in another type, or one very near it
        other = nearest_double(one)
    first, _ = keystring.encode([raw.from_python(one)])
    second, _ = keystring.encode([raw.from_python(other)])
    assert (first < second) == (exact(one) < exact(other))
    assert (first == second) == (exact(one) == exact(other))


def random_decimals(rng: random.Random, count: int) -> list[Decimal128]:
    """Decimals of all ranges: near doubles, subnormal, huge, with trailing zeros."""
    found = []
    for _ in range(count):
        digits = rng.randrange(10 ** rng.randint(1, 34)) or 1
        if rng.random() < 0.3:
            digits = int(str(digits).rstrip("0")[:17] or 1) * 10 ** rng.randint(0, 17)
        exponent = rng.choice([rng.randint(-6176, 6111), rng.randint(-45, 10), rng.randint(-360, -290)])
        found.append(Decimal128(f"{rng.choice(['', '-'])}{digits}E{exponent}"))
    return found


def test_keys_are_those_of_a_server(mongodb: ReplicaSet, database: Any) -> None:
    """Tokens of a real server for ids of every kind of number hold the bytes that we make."""
    rng = random.Random(20)
    ids: list[Any] = random_decimals(rng, 1500)
    ids += [rng.uniform(-1, 1) * 2.0 ** rng.randint(-1070, 1020) for _ in range(300)]
    ids += [Int64(rng.randint(-(2**63), 2**63 - 1) >> rng.randint(0, 62)) for _ in range(300)]
    ids += [2.0**63, -(2.0**63), 2.0**-255, math.inf, -math.inf, math.nan, 5e-324, Decimal128("NaN")]
    collection = database.numbers
    collection.insert_one({"_id": "first"})
    with collection.watch() as stream:
        unique = {keystring.encode([raw.from_python(n)])[0]: n for n in ids}
        collection.insert_many([{"_id": n} for n in unique.values()])
        uuid = ResumeToken.parse(stream.resume_token).decode()  # the stream is open
        assert uuid.is_high_water_mark
        for number in unique.values():
            event = stream.next()
            token = ResumeToken.parse(event["_id"])
            data = token.decode()
            assert data.event_identifier == bson.encode({"_id": number}), number
            assert ResumeToken.encode(data).to_bson() == token.to_bson(), number


def test_bytes_order_as_a_server_sorts(database: Any) -> None:
    """Values of all types: sorting their keys gives the order of a server's own sort."""
    rng = random.Random(21)
    values: list[Any] = [VALUES_OF_ALL_TYPES[n % len(VALUES_OF_ALL_TYPES)](rng) for n in range(600)]
    collection = database.ordered
    collection.insert_many([{"_id": n, "v": {"v": value}} for n, value in enumerate(values)])
    # A document around each value, because a sort looks into arrays but compares documents whole.
    order = [doc["_id"] for doc in collection.find().sort([("v", 1), ("_id", 1)])]
    keys = [keystring.encode([raw.from_python({"v": value})])[0] for value in values]
    assert sorted(range(len(values)), key=lambda n: (keys[n], n)) == order


def small_number(rng: random.Random) -> Any:
    number = rng.randint(-3, 3)
    return rng.choice([number, Int64(number), float(number), number + 0.5, Decimal128(str(number))])


VALUES_OF_ALL_TYPES = [
    small_number,
    small_number,
    lambda rng: rng.choice(["", "a", "a\0", "a\0b", "ab", "b", "é"]),
    lambda rng: [small_number(rng) for _ in range(rng.randint(0, 3))],
    lambda rng: {rng.choice("ab"): small_number(rng) for _ in range(rng.randint(0, 2))},
    lambda rng: {"a": [small_number(rng)], "b": rng.choice([None, True, "x"])},
    lambda rng: bson.Binary(bytes(rng.randint(0, 3)), rng.choice([0, 5, 128])),
    lambda rng: bson.ObjectId(bytes(11) + bytes([rng.randint(0, 3)])),
    lambda rng: rng.choice([True, False, None, bson.MinKey(), bson.MaxKey()]),
    lambda rng: bson.Timestamp(rng.randint(0, 2), rng.randint(0, 2)),
    lambda rng: bson.datetime_ms.DatetimeMS(rng.randint(-2, 2)),
    lambda rng: bson.Regex(rng.choice("ab"), rng.choice(["", "i"])),
    lambda rng: bson.Code(rng.choice("ab")),
    lambda rng: bson.Code(rng.choice("ab"), {"x": rng.randint(0, 1)}),
]


def test_long_type_bits() -> None:
    decimals = [Decimal128(f"{n}.1") for n in range(1200)]
    value = raw.from_python(decimals)
    key, bits = keystring.encode([value])
    assert bits[0] == 0x80
    assert keystring.decode(key, bits) == [value]
    short = keystring.encode([raw.from_python(decimals[:20])])
    assert short[1][0] == 0x80 | len(short[1]) - 1
    assert type_bits.pack("0" * 50) == b""


@given(st.binary(max_size=60), st.binary(max_size=12))
def test_any_bytes_raise_only_the_own_error(key: bytes, bits: bytes) -> None:
    for head in (b"", b"\x2b\x03", b"\x33", b"\x1f", b"\x2a", b"\x28", b"\x46\x1ea\0\x2a", b"\x50"):
        try:
            values = keystring.decode(head + key, bits)
        except InvalidResumeToken:
            continue
        for value in values:
            raw.validate(raw.document(raw.element(value.kind, b"v", value.data)))


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(InvalidResumeToken, match="too deep") as caught:
        keystring.decode(b"\x50" * 300)
    assert caught.value.server_code == 15


@pytest.mark.parametrize(
    ("key", "bits", "code"),
    [
        ("2b03" + "00" * 7, "", 50810),  # a fraction that claims to be an int
        ("2a" + "c0" + "00" * 7, "", 50825),
        ("2a" + "40" + "00" * 7, "03", 50823),
        ("2a" + "40" + "00" * 6 + "01", "01", 50822),
        ("2a" + "00" * 8, "", 50825),
        ("33" + "80" + "00" * 7, "", 50818),
        ("33" + "00" * 8, "02", 50821),
        ("33" + "00" * 8, "", 50826),
        ("33" + "ff" * 8, "", 50821),
        ("1e", "", 50819),
        ("29", "83130000", 50846),
        ("3c61", "", 50816),
        ("5a05", "", 15),
        ("2b", "", 15),
        ("2b02", "82", 15),
        ("2b022b022b022b022b02", "03", 50615),
        ("2b02", "17", 50829),
    ],
)
def test_bad_keys_have_the_codes_of_the_server(key: str, bits: str, code: int) -> None:
    with pytest.raises(InvalidResumeToken) as caught:
        keystring.decode(bytes.fromhex(key), bytes.fromhex(bits))
    assert caught.value.server_code == code


def test_decimal_arithmetic_is_exact() -> None:
    numbers = [decimal128.Decimal(False, c, e) for c in (1, 15, 10**33) for e in (-3, 0, 2)]
    ordered = sorted(numbers, key=cmp_to_key(decimal128.compare))
    assert [n.coefficient * 10.0**n.exponent for n in ordered] == sorted(
        n.coefficient * 10.0**n.exponent for n in numbers
    )
    assert decimal128.truncate_to_double(decimal128.Decimal(False, 1, -1)) == (0.09999999999999999, False)
    assert decimal128.truncate_to_double(decimal128.Decimal(False, 25, -1)) == (2.5, True)
