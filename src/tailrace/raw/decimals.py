"""Decimal128 values as numbers that Python computes with."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from bson.decimal128 import Decimal128

_COEFFICIENT: Final = (1 << 113) - 1
_GREATEST: Final = 10**34 - 1
_BIAS: Final = 6176


def to_decimal(value: Decimal128) -> Decimal:
    """Give the number that servers take a value for, whatever its bits are: they store them as they get them.

    A signalling NaN is a quiet one: Python raises when one is compared or converted. A coefficient of more than 34
    digits is zero: `bson` raises `decimal.Inexact` for it.
    """
    bits = int.from_bytes(value.bid, "little")
    if bits & _COEFFICIENT > _GREATEST and bits >> 125 & 3 != 3:
        return Decimal((bits >> 127, (0,), (bits >> 113 & 0x3FFF) - _BIAS))
    number = value.to_decimal()
    return Decimal("-NaN" if number.is_signed() else "NaN") if number.is_snan() else number
