"""A position as Spark keeps it in its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson.timestamp import Timestamp

from tailrace.token import ResumeToken


@dataclass(frozen=True, slots=True)
class Offset:
    """A place in the stream: a token, of an event or a bare high-water mark.

    `token` is None before the first batch of a query that starts now: the first batch is then the empty range up to the
    position that the server gave, and a retry of it finds the same end in the checkpoint.
    """

    token: ResumeToken | None

    @classmethod
    def at(cls, time: Timestamp) -> Offset:
        """Just before the events of a time."""
        return cls(ResumeToken.high_water_mark(time))

    @classmethod
    def from_hex(cls, text: str) -> Offset:
        """Behind the event with this token; the column `token` has it like that."""
        token = ResumeToken.from_hex(text)
        token.decode()
        return cls(token)

    @classmethod
    def from_bson(cls, token: bytes) -> Offset:
        """The position that a server gave."""
        return cls(ResumeToken.parse(token))

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Offset:
        """Read what `to_json` gave."""
        text = form.get("token")
        return cls(None if text is None else ResumeToken.from_hex(text, bytes.fromhex(form.get("typeBits", ""))))

    def to_json(self) -> dict[str, Any]:
        """Give what Spark writes into its checkpoint; the time is there for people."""
        if self.token is None:
            return {"token": None}
        time = self.token.cluster_time
        form = {"token": self.token.hex, "clusterTime": f"{time.time}:{time.inc}"}
        return {**form, "typeBits": self.token.type_bits.hex()} if self.token.type_bits else form

    @property
    def key(self) -> bytes:
        """Compares as the positions do; nothing is before the beginning."""
        return b"" if self.token is None else self.token.key
