"""CRC-32C, which an OP_MSG may carry behind its sections.

No driver sends one, and the servers that do speak to each other. So it is checked in Python, and only for messages
that are small enough not to hold up others meanwhile.
"""

from __future__ import annotations

from typing import Final

_POLYNOMIAL: Final = 0x82F63B78
_ALL_ONES: Final = 0xFFFFFFFF
MAX_CHECKED: Final = 64 * 1024
"""Bytes of the largest message whose checksum is looked at: some 5 ms."""


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(map(_table_entry, range(256)))


def crc32c(data: bytes) -> int:
    """Give the checksum of some bytes."""
    checksum, table = _ALL_ONES, _TABLE
    for byte in data:
        checksum = table[(checksum ^ byte) & 0xFF] ^ checksum >> 8
    return checksum ^ _ALL_ONES
