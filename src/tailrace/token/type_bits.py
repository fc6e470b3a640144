"""The type bits of a KeyString: what its bytes leave out.

Numbers of equal value have equal bytes whatever their BSON type, and so do strings and symbols; one
stream of bits beside the bytes says which type each was. The stream is kept as text of zeros and ones
while it is built: it is short, and seldom has a one in it.
"""

from __future__ import annotations

from tailrace.errors import InvalidResumeToken


def pack(bits: str) -> bytes:
    """Pack a stream of bits, first bit lowest; all zeros pack to nothing."""
    if "1" not in bits:
        return b""
    size = (len(bits) + 7) // 8
    data = int(bits[::-1], 2).to_bytes(size, "little")
    if size == 1 and data[0] < 0x80:
        return data
    if size < 0x80:
        return bytes([0x80 | size]) + data
    return b"\x80" + size.to_bytes(4, "little") + data


class BitReader:
    """Reads groups of bits from packed type bits; nothing packed reads as zeros without end."""

    __slots__ = ("_bits", "_position")

    def __init__(self, packed: bytes) -> None:
        data = _unpack(packed)
        self._bits = "".join(f"{byte:08b}"[::-1] for byte in data)
        self._position = 0

    def read(self, count: int) -> str:
        """Take the next `count` bits."""
        if not self._bits:
            return "0" * count
        end = self._position + count
        if end > len(self._bits):
            raise InvalidResumeToken("the type bits end too early", server_code=50615)
        group = self._bits[self._position : end]
        self._position = end
        return group


def _unpack(packed: bytes) -> bytes:
    if not packed or packed[0] == 0:
        return b""
    if packed[0] < 0x80:
        return packed[:1]
    size, start = packed[0] & 0x7F, 1
    if size == 0:
        size, start = int.from_bytes(packed[1:5], "little"), 5
    if len(packed) < start + size:
        raise InvalidResumeToken("the type bits are shorter than they say", server_code=15)
    return packed[start : start + size]
