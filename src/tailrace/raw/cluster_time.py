"""Cluster time: when something happened, on the clock that a whole cluster shares."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from bson.timestamp import Timestamp

_INCREMENT = 0xFFFFFFFF


class ClusterTime(int):
    """Seconds in the upper 32 bits, increment in the lower: a number, so that times are compared and kept as one."""

    __slots__ = ()

    @classmethod
    def of(cls, seconds: int, increment: int = 0) -> ClusterTime:
        """Put a time together."""
        return cls(seconds << 32 | increment)

    @classmethod
    def from_timestamp(cls, time: Timestamp) -> ClusterTime:
        """Give the time that a BSON timestamp is."""
        return cls(int(time.time) << 32 | int(time.inc))

    @classmethod
    def from_text(cls, text: str | bytes) -> ClusterTime:
        """Read `seconds:increment`, as headers have it; an increment may be missing."""
        seconds, _, increment = (text.decode() if isinstance(text, bytes) else text).partition(":")
        return cls.of(int(seconds), int(increment or 0))

    @classmethod
    def parse(cls, text: str) -> ClusterTime:
        """Read a time as people write it: `seconds:increment`, `seconds,increment`, epoch seconds, or ISO 8601.

        A date without a time zone is UTC. Raises ValueError for anything else, and for what a timestamp cannot hold.
        """
        parts = re.fullmatch(r"(\d+)(?:[:,](\d+))?", text)
        if parts:
            seconds, increment = int(parts[1]), int(parts[2] or 0)
        else:
            moment = datetime.fromisoformat(text)
            seconds, increment = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()), 0
        if not (0 <= seconds <= _INCREMENT and increment <= _INCREMENT):
            raise ValueError(f"{text} is not between 1970 and 2106")
        return cls.of(seconds, increment)

    @property
    def seconds(self) -> int:
        """Seconds since 1970."""
        return int(self) >> 32

    @property
    def increment(self) -> int:
        """Number of the operation in its second."""
        return int(self) & _INCREMENT

    @property
    def next(self) -> ClusterTime:
        """The earliest time behind this one."""
        return ClusterTime(int(self) + 1)

    @property
    def timestamp(self) -> Timestamp:
        """The same as pymongo's value."""
        return Timestamp(int(self) >> 32, int(self) & _INCREMENT)

    @property
    def text(self) -> str:
        """`seconds:increment`."""
        return f"{int(self) >> 32}:{int(self) & _INCREMENT}"
