"""Numbers in a KeyString: equal values have equal bytes, greater values greater bytes.

An int32, an int64, a double and a decimal128 of one value differ only in their type bits. Integers (and
integral doubles and decimals) below 2**63 use 1 to 8 bytes; what has a fraction, is below 1 or is at
least 2**63 uses the bits of a double. A decimal that no double equals is written as the double below
it, with a marker (`_EXACT` and its fellows), and if needed the 8 bytes of what is missing.
"""

from __future__ import annotations

import math
import sys
from struct import Struct
from typing import Final

from tailrace import raw
from tailrace.errors import InvalidResumeToken
from tailrace.token import decimal128
from tailrace.token.decimal128 import Decimal, Special
from tailrace.token.type_bits import BitReader

NAN: Final = 0x1E
NEGATIVE_LARGE: Final = 0x1F
NEGATIVE_INTEGER: Final = 0x28  # less the number of bytes
NEGATIVE_SMALL: Final = 0x28
ZERO: Final = 0x29
POSITIVE_SMALL: Final = 0x2A
POSITIVE_INTEGER: Final = 0x2A  # plus the number of bytes
POSITIVE_LARGE: Final = 0x33

# The bits that tell the types apart.
_INT32, _INT64, _DOUBLE, _DECIMAL = "00", "01", "10", "11"
_NEGATIVE_ZERO = "11000"
_FIRST_DECIMAL_ZERO = 0b11010  # of six patterns of five bits, one for each 4096 decimal zeros

# How a decimal relates to the double written for it, which is the next one toward zero.
_EXACT = 0
_BELOW_15_DIGITS = 1  # less than the double rounded up to 15 digits; the rest follows
_IS_15_DIGITS = 2  # equals the double rounded up to 15 digits
_ABOVE_15_DIGITS = 3  # greater than that; the rest follows

_LARGE = 2.0**63
_PRECISE = 2.0**53  # integers below this are exact in a double
_TWO_MARKER_BITS = 2.0**-255  # doubles from here to 1 leave two bits free for the marker
_SHIFT = 2.0**256  # keeps doubles below that out of the subnormal range
_SHIFT_UP = decimal128.from_double(_SHIFT, 34, up=False)
_SHIFT_DOWN = decimal128.from_double(1 / _SHIFT, 34, up=False)
_ALL_ONES = (1 << 64) - 1
_bits_of = Struct(">d").pack


# --- encoding


def encode(kind: int, data: bytes, bits: list[str]) -> bytes:
    """Encode a BSON number; its type bits are added to `bits`."""
    if kind == raw.INT32:
        bits.append(_INT32)
        return encode_integer(int.from_bytes(data, "little", signed=True))
    if kind == raw.INT64:
        bits.append(_INT64)
        return encode_integer(int.from_bytes(data, "little", signed=True))
    if kind == raw.DOUBLE:
        number = raw.double_at(data)
        negative_zero = number == 0 and math.copysign(1, number) < 0
        bits.append(_NEGATIVE_ZERO if negative_zero else _DOUBLE)
        return _double(number, _EXACT)
    return _decimal(decimal128.unpack(data), bits)


def encode_integer(number: int) -> bytes:
    """Encode an integer of at most 64 bits."""
    if number > 0:
        return _integer(number << 1, negative=False)
    if number == 0:
        return b"\x29"
    if number == -(2**63):
        return _large(-_LARGE, _EXACT)
    return _integer(-number << 1, negative=True)


def _integer(doubled: int, *, negative: bool) -> bytes:
    """Encode twice a magnitude; the lowest bit says whether a fraction follows."""
    size = (doubled.bit_length() + 7) >> 3
    if negative:
        return bytes([NEGATIVE_INTEGER - size]) + _inverted(doubled, size)
    return bytes([POSITIVE_INTEGER + size]) + doubled.to_bytes(size, "big")


def _inverted(number: int, size: int) -> bytes:
    return (number ^ ((1 << 8 * size) - 1)).to_bytes(size, "big")


def _eight_bytes(number: int, *, negative: bool) -> bytes:
    return _inverted(number, 8) if negative else number.to_bytes(8, "big")


def _double(number: float, marker: int) -> bytes:
    magnitude = abs(number)
    if magnitude >= _LARGE:
        return _large(number, marker)
    if magnitude >= 1:
        return _middle(magnitude, marker, negative=number < 0)
    if magnitude > 0:
        return _small(number, marker)
    return bytes([ZERO if number == 0 else NAN])


def _middle(magnitude: float, marker: int, *, negative: bool) -> bytes:
    """Encode 1 to 2**63: an integer, or 8 bytes of integer part, fraction and marker."""
    integer = int(magnitude)
    if integer == magnitude and marker == _EXACT:
        return _integer(integer << 1, negative=negative)
    size = ((integer << 1).bit_length() + 7) >> 3
    fraction_size = 8 * (8 - size)
    fixed_point = int(math.ldexp(magnitude, fraction_size)) + ((integer + 1) << fraction_size)
    head = NEGATIVE_INTEGER - size if negative else POSITIVE_INTEGER + size
    return bytes([head]) + _eight_bytes(fixed_point | marker, negative=negative)


def _small(number: float, marker: int) -> bytes:
    """Encode a magnitude between 0 and 1."""
    magnitude = abs(number)
    if magnitude >= _TWO_MARKER_BITS:
        ordered = _double_bits(magnitude) << 2 | marker
    else:
        ordered = (_double_bits(magnitude * _SHIFT) << 1 | (marker != _EXACT)) + (1 << 62)
    return _small_head(number < 0) + _eight_bytes(ordered, negative=number < 0)


def _small_head(negative: bool) -> bytes:
    return bytes([NEGATIVE_SMALL if negative else POSITIVE_SMALL])


def _large_head(negative: bool) -> bytes:
    return bytes([NEGATIVE_LARGE if negative else POSITIVE_LARGE])


def _large(number: float, marker: int) -> bytes:
    """Encode a magnitude of 2**63 and more."""
    # The top bit of such an exponent is always set, so it can be left out.
    finite = (_double_bits(abs(number)) << 1 | (marker != _EXACT)) & (1 << 63) - 1
    ordered = _ALL_ONES if math.isinf(number) else finite
    return _large_head(number < 0) + _eight_bytes(ordered, negative=number < 0)


def _double_bits(number: float) -> int:
    return int.from_bytes(_bits_of(number), "big")


def _decimal(value: Decimal | Special, bits: list[str]) -> bytes:
    if isinstance(value, Special):
        bits.append(_DECIMAL)
        return b"\x1e" if value.nan else _large(-math.inf if value.negative else math.inf, _EXACT)
    if not value.coefficient:
        bits.append(_decimal_zero_bits(value))
        return b"\x29"
    bits.append(f"{_DECIMAL}{value.biased & 0x3F:06b}")
    magnitude, exact = decimal128.truncate_to_double(value)
    double = -magnitude if value.negative else magnitude
    if exact:
        return _double(double, _EXACT)
    if magnitude < sys.float_info.min:
        return _small_head(value.negative) + _tiny_decimal(value, magnitude)
    if magnitude == sys.float_info.max:
        huge = decimal128.pack_magnitude(decimal128.normalize(value)) | 1 << 127
        return _large_head(value.negative) + _sixteen_bytes(huge, negative=value.negative)
    return _decimal_beside(value, double)


def _decimal_zero_bits(value: Decimal) -> str:
    index = value.biased + (decimal128.MAX_BIASED + 1 if value.negative else 0)
    return f"{_FIRST_DECIMAL_ZERO + (index >> 12):05b}{index & 0xFFF:012b}"


def _sixteen_bytes(number: int, *, negative: bool) -> bytes:
    return _inverted(number, 16) if negative else number.to_bytes(16, "big")


def _decimal_beside(value: Decimal, double: float) -> bytes:
    """Encode a decimal in the range of doubles that is none: the double toward zero, and the rest."""
    magnitude = abs(double)
    if magnitude >= _LARGE or magnitude < _TWO_MARKER_BITS:
        written = _double(double, _ABOVE_15_DIGITS)  # one marker bit, so the rest always follows
    elif magnitude >= _PRECISE:
        return _decimal_over_53_bits(value)
    else:
        rounded = decimal128.from_double(magnitude, 15, up=True)
        order = decimal128.compare(value, rounded)
        if order == 0:
            return _double(double, _IS_15_DIGITS)
        written = _double(double, _BELOW_15_DIGITS if order < 0 else _ABOVE_15_DIGITS)
    stored = decimal128.from_double(magnitude, 34, up=True)
    return written + _rest(value, stored)


def _decimal_over_53_bits(value: Decimal) -> bytes:
    """Encode 2**53 to 2**63, where a double would lose digits of the integer part."""
    if value.exponent >= 0:
        integer, fraction = value.coefficient * decimal128.power_of_ten(value.exponent), 0
    else:
        integer, fraction = divmod(value.coefficient, decimal128.power_of_ten(-value.exponent))
    written = _integer(integer << 1 | bool(fraction), negative=value.negative)
    if not fraction:
        return written
    if integer < 1 << 55:  # the integer takes seven bytes; the eighth has room for the marker alone
        written += bytes([_ABOVE_15_DIGITS ^ (0xFF if value.negative else 0)])
    return written + _rest(value, decimal128.normalize(Decimal(False, integer, 0)))


def _rest(value: Decimal, stored: Decimal) -> bytes:
    """Give what is missing between the stored magnitude and the value."""
    return _eight_bytes(decimal128.difference(value, stored), negative=value.negative)


def _tiny_decimal(value: Decimal, magnitude: float) -> bytes:
    """Encode a decimal below the normal doubles, scaled up in the decimal domain."""
    if magnitude == 0:
        plain = decimal128.pack_magnitude(decimal128.normalize(value))
        return _sixteen_bytes(plain, negative=value.negative)
    scaled_up, _ = decimal128.truncate_to_double(decimal128.multiply(value, _SHIFT_UP))
    scaled = max(scaled_up, magnitude * _SHIFT)
    ordered = (_double_bits(scaled) << 1 | 1) + (1 << 62)
    return _eight_bytes(ordered, negative=value.negative) + _rest(value, _unscaled(scaled))


def _unscaled(scaled: float) -> Decimal:
    """Undo the scaling of a tiny decimal, rounding down so that the rest is never negative."""
    down = decimal128.multiply(decimal128.from_double(scaled, 34, up=False), _SHIFT_DOWN)
    return decimal128.normalize(down)


# --- decoding


class NumberReader:
    """Reads one number: its bytes (of negative ones inverted) and its type bits."""

    __slots__ = ("_bits", "_data", "_negative", "position")

    def __init__(self, data: bytes, position: int, bits: BitReader, *, negative: bool) -> None:
        self._data = data
        self._bits = bits
        self._negative = negative
        self.position = position

    def _unsigned(self, size: int) -> int:
        end = self.position + size
        if end > len(self._data):
            left = len(self._data) - self.position
            message = f"Invalid advance ({size}) past end of buffer[{left}] at offset: 0"
            raise InvalidResumeToken(message, server_code=15)
        number = int.from_bytes(self._data[self.position : end], "big")
        self.position = end
        return number ^ ((1 << 8 * size) - 1) if self._negative else number

    def integer_or_middle(self, size: int) -> raw.Value:
        """Read an integer of so many bytes, and its fraction if it says that it has one."""
        kind = self._bits.read(2)
        doubled = self._unsigned(size)
        if not doubled & 1:
            return self._integral(kind, doubled >> 1)
        fraction_size = 8 - size
        fixed_point = (doubled >> 1) << 8 * fraction_size | (self._unsigned(fraction_size) if fraction_size else 0)
        magnitude = math.ldexp(float(fixed_point & ~3), -8 * fraction_size)
        marker = fixed_point & 3 if fraction_size else _ABOVE_15_DIGITS
        if kind == _DOUBLE:
            return self._as_double(magnitude)
        _expect(kind == _DECIMAL, 50810, "a fraction is neither a double nor a decimal")
        if marker in (_BELOW_15_DIGITS, _ABOVE_15_DIGITS) and doubled >> 1 >= _PRECISE:
            return self._with_rest(Decimal(False, doubled >> 1, 0))
        return self._by_marker(magnitude, marker)

    def small(self) -> raw.Value:
        """Read a magnitude between 0 and 1."""
        kind = self._bits.read(2)
        ordered = self._unsigned(8)
        if ordered >> 62 == 0:
            _expect(kind == _DECIMAL, 50825, "a number this small is no decimal")
            return self._plain_decimal(ordered << 64 | self._unsigned(8))
        if ordered >> 62 == 3:
            magnitude = _double_of(ordered >> 2)
            if kind == _DOUBLE:
                return self._as_double(magnitude)
            _expect(kind == _DECIMAL, 50825, "a small number is no decimal")
            return self._by_marker(magnitude, ordered & 3)
        scaled = _double_of((ordered - (1 << 62)) >> 1)
        if kind == _DOUBLE:
            _expect(not ordered & 1, 50822, "a double is followed by decimal digits")
            return self._as_double(scaled / _SHIFT)
        _expect(kind == _DECIMAL and ordered & 1, 50823, "decimal digits are missing")
        if scaled < sys.float_info.min * _SHIFT:
            return self._with_rest(_unscaled(scaled))
        return self._with_rest(decimal128.from_double(scaled / _SHIFT, 34, up=True))

    def large(self) -> raw.Value:
        """Read a magnitude of 2**63 and more."""
        kind = self._bits.read(2)
        ordered = self._unsigned(8)
        if ordered == _ALL_ONES:
            return self._infinity(kind)
        if ordered >> 63:
            _expect(kind == _DECIMAL, 50818, "a number this large is no decimal")
            return self._plain_decimal((ordered & (1 << 63) - 1) << 64 | self._unsigned(8))
        magnitude = _double_of(ordered >> 1 | 1 << 62)
        if kind == _DOUBLE:
            return self._as_double(magnitude)
        if kind == _INT64:
            _expect(self._negative and magnitude == _LARGE, 50821, "an integer this large")
            return raw.Value(raw.INT64, raw.int64(-(2**63)))
        _expect(kind == _DECIMAL, 50826, "a number this large is neither double nor decimal")
        stored = decimal128.from_double(magnitude, 34, up=True)
        return self._with_rest(stored) if ordered & 1 else self._with_exponent(stored)

    def _infinity(self, kind: str) -> raw.Value:
        if kind == _DECIMAL:
            return raw.Value(raw.DECIMAL128, decimal128.pack(Special(self._negative, nan=False)))
        _expect(kind == _DOUBLE, 50821, "an integer is infinite")
        return self._as_double(math.inf)

    def _integral(self, kind: str, magnitude: int) -> raw.Value:
        number = -magnitude if self._negative else magnitude
        if kind == _INT32:
            # As the server does: what does not fit loses its upper bits.
            return raw.Value(raw.INT32, (number & 0xFFFFFFFF).to_bytes(4, "little"))
        if kind == _INT64:
            return raw.Value(raw.INT64, raw.int64(number))
        if kind == _DOUBLE:
            return self._as_double(float(magnitude))
        return self._with_exponent(Decimal(False, magnitude, 0))

    def _by_marker(self, magnitude: float, marker: int) -> raw.Value:
        if marker in (_BELOW_15_DIGITS, _ABOVE_15_DIGITS):
            return self._with_rest(decimal128.from_double(magnitude, 34, up=True))
        digits = 15 if marker == _IS_15_DIGITS else 34
        return self._with_exponent(decimal128.from_double(magnitude, digits, up=True))

    def _with_rest(self, stored: Decimal) -> raw.Value:
        stored = decimal128.normalize(stored)
        coefficient = stored.coefficient + self._unsigned(8)
        _expect(len(str(coefficient).rstrip("0")) <= 34, 50815, "a decimal has too many digits")
        return self._with_exponent(Decimal(False, coefficient, stored.exponent))

    def _plain_decimal(self, bits: int) -> raw.Value:
        value = decimal128.unpack(bits.to_bytes(16, "little"))
        _expect(isinstance(value, Decimal), 50850, "a decimal is not finite")
        assert isinstance(value, Decimal)
        return self._with_exponent(value)

    def _with_exponent(self, value: Decimal) -> raw.Value:
        """Write the value with the exponent of which the type bits keep the last six bits."""
        _expect(value.coefficient > 0, 50829, "a decimal is zero")
        found = decimal128.with_low_exponent_bits(value, int(self._bits.read(6), 2))
        _expect(found is not None, 50829, "a decimal has an impossible exponent")
        assert found is not None
        return raw.Value(raw.DECIMAL128, decimal128.pack(found._replace(negative=self._negative)))

    def _as_double(self, magnitude: float) -> raw.Value:
        return raw.Value(raw.DOUBLE, raw.double(-magnitude if self._negative else magnitude))


def decode_zero(bits: BitReader) -> raw.Value:
    """Give the zero that the type bits tell: there are four types and many decimal zeros."""
    kind = bits.read(2)
    if kind == _INT32:
        return raw.Value(raw.INT32, raw.int32(0))
    if kind == _INT64:
        return raw.Value(raw.INT64, raw.int64(0))
    if kind == _DOUBLE:
        return raw.Value(raw.DOUBLE, raw.double(0.0))
    kind += bits.read(3)
    if kind == _NEGATIVE_ZERO:
        return raw.Value(raw.DOUBLE, raw.double(-0.0))
    index = int(kind, 2) - _FIRST_DECIMAL_ZERO << 12 | int(bits.read(12), 2)
    _expect(0 <= index <= 2 * decimal128.MAX_BIASED + 1, 50846, "there is no such decimal zero")
    negative, biased = divmod(index, decimal128.MAX_BIASED + 1)
    zero = Decimal(bool(negative), 0, biased - decimal128.BIAS)
    return raw.Value(raw.DECIMAL128, decimal128.pack(zero))


def decode_nan(bits: BitReader) -> raw.Value:
    """Give the NaN that the type bits tell, of two."""
    kind = bits.read(2)
    if kind == _DOUBLE:
        return raw.Value(raw.DOUBLE, raw.double(math.nan))
    _expect(kind == _DECIMAL, 50819, "an integer is not a number")
    return raw.Value(raw.DECIMAL128, decimal128.pack(Special(False, nan=True)))


def _double_of(bits: int) -> float:
    return raw.double_at((bits & _ALL_ONES).to_bytes(8, "little"))


def _expect(condition: bool | int, server_code: int, message: str) -> None:
    if not condition:
        raise InvalidResumeToken(message, server_code=server_code)
