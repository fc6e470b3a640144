"""Plain entries of 4.2, put into the order in which later servers write them.

4.2 begins an entry with its time and ends it with the document. One copy of it in the later order takes a thirtieth of
the time of the general way, and all that is known about plain entries holds for it.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

from tailrace import raw

_HEAD: Final = Struct("<4s8x3s8x3s8x3s4x4s")
_NAMES: Final = (b"\x11ts\x00", b"\x12t\x00", b"\x12h\x00", b"\x10v\x00", b"\x02op\x00")
_TERM_END, _OPERATION = 27, 45
"""Where the elements `ts` and `t` end, and where `op` begins."""
_LATER_VERSION: Final = b"\x12v\x00\x02\x00\x00\x00\x00\x00\x00\x00"
"""The element `v`, which later servers write as a long."""
_WALL_SIZE: Final = 14
_NUMBERS_SIZE: Final = 19 + 12
"""Of `txnNumber` and `stmtId`, which follow `lsid` in entries of retryable writes."""
_int32_at = Struct("<i").unpack_from


def in_later_order(entry: bytes) -> bytes | None:
    """Give an entry as a later server would have written it, without its session; None when it is not a plain one."""
    try:
        if _HEAD.unpack_from(entry, 4) != _NAMES:
            return None
        behind = _OPERATION + 43 + entry[_OPERATION + 14]
        wall = behind
        if entry[behind : behind + 4] == b"\x03o2\x00":
            wall = behind + 4 + _int32_at(entry, behind + 4)[0]
        body = wall + _WALL_SIZE
        if entry[body : body + 6] == b"\x03lsid\x00":
            body = _behind_session(entry, body)
        ends = body + 3 + _int32_at(entry, body + 3)[0] == len(entry) - 1
    except (IndexError, StructError):
        return None
    if not ends or entry[wall : wall + 6] != b"\x09wall\x00" or entry[body : body + 3] != b"\x03o\x00":
        return None
    return raw.document(
        entry[_OPERATION:behind],
        entry[body:-1],
        entry[behind:wall],
        entry[4:_TERM_END],
        _LATER_VERSION,
        entry[wall : wall + _WALL_SIZE],
    )


def _behind_session(entry: bytes, start: int) -> int:
    """Give where the elements of a retryable write end; somewhere else when they are not those."""
    numbers: int = start + 6 + _int32_at(entry, start + 6)[0]
    previous = numbers + _NUMBERS_SIZE
    if (
        entry[numbers : numbers + 11] != b"\x12txnNumber\x00"
        or entry[previous : previous + 12] != b"\x03prevOpTime\x00"
    ):
        return start
    end: int = previous + 12 + _int32_at(entry, previous + 12)[0]
    return end
