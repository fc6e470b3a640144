"""IEEE 754 decimal128 values as whole numbers, and their exact relation to doubles.

A finite value is `coefficient * 10 ** exponent` with a sign beside it. Everything here is exact integer
arithmetic: order-preserving keys need the last digit right, and floats or Python's decimal contexts
would have to be steered around their own rounding.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

BIAS: Final = 6176
MAX_BIASED: Final = 12287
DIGITS: Final = 34
_LARGEST = 10**DIGITS - 1
_COEFFICIENT_BITS = 113
_LOWEST_POWER_OF_TWO = -1074  # the unit of subnormal doubles


class Decimal(NamedTuple):
    """A finite decimal128."""

    negative: bool
    coefficient: int
    exponent: int

    @property
    def biased(self) -> int:
        """The exponent as the format stores it."""
        return self.exponent + BIAS


class Special(NamedTuple):
    """An infinity or a NaN."""

    negative: bool
    nan: bool

    @property
    def bits(self) -> int:
        """The 128 bits without the sign."""
        return (0x7C if self.nan else 0x78) << 120


_SIGN: Final = 1 << 127


def power_of_ten(exponent: int) -> int:
    """Give ten to a power that is not negative, as the integer it is."""
    power: int = 10**exponent
    return power


def unpack(data: bytes) -> Decimal | Special:
    """Read the 16 bytes of a BSON decimal128."""
    bits = int.from_bytes(data, "little")
    negative = bool(bits >> 127)
    if bits >> 122 & 0x1F == 0x1F:
        return Special(negative, nan=True)
    if bits >> 122 & 0x1F == 0x1E:
        return Special(negative, nan=False)
    if bits >> 125 & 3 == 3:  # room for coefficients that no 34 digits have: they mean zero
        return Decimal(negative, 0, (bits >> 111 & 0x3FFF) - BIAS)
    coefficient = bits & (1 << _COEFFICIENT_BITS) - 1
    exponent = (bits >> _COEFFICIENT_BITS & 0x3FFF) - BIAS
    return Decimal(negative, coefficient if coefficient <= _LARGEST else 0, exponent)


def pack(value: Decimal | Special) -> bytes:
    """Give the 16 bytes of a BSON decimal128."""
    bits = value.bits if isinstance(value, Special) else pack_magnitude(value)
    return (bits | _SIGN if value.negative else bits).to_bytes(16, "little")


def pack_magnitude(value: Decimal) -> int:
    """Give the 128 bits of a value without its sign."""
    return value.biased << _COEFFICIENT_BITS | value.coefficient


def normalize(value: Decimal) -> Decimal:
    """Write a value with as many of the 34 digits as its exponent allows."""
    shift = min(DIGITS - len(str(value.coefficient)), value.biased)
    return Decimal(value.negative, value.coefficient * power_of_ten(shift), value.exponent - shift)


def with_low_exponent_bits(value: Decimal, low_bits: int) -> Decimal | None:
    """Find the way to write a value whose biased exponent ends in six given bits, if there is one.

    A value can be written with at most 34 exponents, so six bits are enough to tell them apart.
    """
    text = str(value.coefficient)
    digits = text.rstrip("0")
    highest = value.exponent + len(text) - len(digits)
    for shift in range(DIGITS - len(digits) + 1):
        exponent = highest - shift
        if (exponent + BIAS) & 0x3F == low_bits and 0 <= exponent + BIAS <= MAX_BIASED:
            return Decimal(value.negative, int(digits) * power_of_ten(shift), exponent)
    return None


def truncate_to_double(value: Decimal) -> tuple[float, bool]:
    """Give the double nearest to a magnitude on the side of zero, and whether it is exact."""
    magnitude = len(str(value.coefficient)) + value.exponent
    if magnitude > 310:
        return math.ldexp(2**53 - 1, 971), False
    if magnitude < -330:
        return 0.0, False
    over, under = _ratio(value.coefficient, value.exponent)
    power = max(over.bit_length() - under.bit_length() - 53, _LOWEST_POWER_OF_TWO)
    quotient, rest = _divide(over, under, power)
    if quotient >> 53:
        power += 1
        quotient, rest = _divide(over, under, power)
    if power > 971:
        return math.ldexp(2**53 - 1, 971), False
    return math.ldexp(quotient, power), not rest


def _divide(over: int, under: int, power: int) -> tuple[int, int]:
    """Divide `over / under` by two to a power."""
    return divmod(over, under << power) if power > 0 else divmod(over << -power, under)


def _ratio(coefficient: int, exponent: int) -> tuple[int, int]:
    return (coefficient * power_of_ten(exponent), 1) if exponent >= 0 else (coefficient, power_of_ten(-exponent))


def round_ratio(over: int, under: int, digits: int, *, up: bool) -> Decimal:
    """Round a positive ratio to exactly so many digits, up or down."""
    exponent = math.floor((over.bit_length() - under.bit_length()) * math.log10(2)) - digits - 1
    while True:
        scaled_over = over * power_of_ten(-exponent) if exponent < 0 else over
        scaled_under = under * power_of_ten(exponent) if exponent > 0 else under
        quotient, rest = divmod(scaled_over, scaled_under)
        if up and rest:
            quotient += 1
        excess = len(str(quotient)) - digits
        if excess <= 0:
            return Decimal(False, quotient, exponent)
        exponent += excess


def from_double(magnitude: float, digits: int, *, up: bool) -> Decimal:
    """Round a positive double to so many digits."""
    return round_ratio(*magnitude.as_integer_ratio(), digits, up=up)


def multiply(first: Decimal, second: Decimal) -> Decimal:
    """Multiply two magnitudes, rounding toward zero to 34 digits."""
    product = first.coefficient * second.coefficient
    exponent = first.exponent + second.exponent
    excess = len(str(product)) - DIGITS
    if excess > 0:
        return Decimal(False, product // power_of_ten(excess), exponent + excess)
    return Decimal(False, product, exponent)


def difference(larger: Decimal, smaller: Decimal) -> int:
    """Give `larger - smaller` of two magnitudes in units of the second's last digit."""
    shift = larger.exponent - smaller.exponent
    if shift < 0:
        return larger.coefficient // power_of_ten(-shift) - smaller.coefficient
    return larger.coefficient * power_of_ten(shift) - smaller.coefficient


def compare(first: Decimal, second: Decimal) -> int:
    """Compare two magnitudes: negative, zero or positive."""
    lowest = min(first.exponent, second.exponent)
    left = first.coefficient * power_of_ten(first.exponent - lowest)
    right = second.coefficient * power_of_ten(second.exponent - lowest)
    return (left > right) - (left < right)
