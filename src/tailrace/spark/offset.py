"""A position as Spark keeps it in its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import bson
from bson.timestamp import Timestamp

from tailrace.token import ResumeToken
from tailrace.token.shard_positions import read_positions, with_positions


@dataclass(frozen=True, slots=True)
class Offset:
    """A place in the stream: a token, of an event or a bare high-water mark.

    `token` is None before the first batch of a query that starts now: the first batch is then the empty range up to the
    position that the server gave, and a retry of it finds the same end in the checkpoint.
    """

    token: ResumeToken | None
    shards: Mapping[str, ResumeToken] = field(default_factory=dict)
    """Where each shard stands, when the oplogs of a cluster are read: a repetition reads the same ones."""

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
        return cls(ResumeToken.parse(token), read_positions(bson.decode(token)))

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Offset:
        """Read what `to_json` gave."""
        if form.get("token") is None:
            return cls(None)
        return cls(_read(form), {name: _read(own) for name, own in form.get("shards", {}).items()})

    def to_json(self) -> dict[str, Any]:
        """Give what Spark writes into its checkpoint; the time is there for people."""
        if self.token is None:
            return {"token": None}
        shards = {name: _written(token) for name, token in sorted(self.shards.items())}
        return {**_written(self.token), **({"shards": shards} if shards else {})}

    def on_shards_of(self, later: Offset) -> Offset:
        """Give this place with the shards of a later one, all of which have come past its time."""
        if self.token is None or not later.shards:
            return self
        mark = ResumeToken.high_water_mark(self.token.cluster_time)
        return replace(self, shards=dict.fromkeys(later.shards, mark))

    def on_shard(self, name: str) -> Offset:
        """Give where one shard stands: at its own place, or at the time of the merged one, whose events it may have."""
        assert self.token is not None
        return Offset(self.shards.get(name) or ResumeToken.high_water_mark(self.token.cluster_time))

    def to_bson(self) -> bytes:
        """Give the token to go on behind, with that of each shard in it."""
        assert self.token is not None
        return with_positions(self.token.to_bson(), self.shards)

    @property
    def key(self) -> bytes:
        """Compares as the positions do; nothing is before the beginning."""
        return b"" if self.token is None else self.token.key


def _written(token: ResumeToken) -> dict[str, Any]:
    time = token.cluster_time
    form = {"token": token.hex, "clusterTime": f"{time.time}:{time.inc}"}
    return {**form, "typeBits": token.type_bits.hex()} if token.type_bits else form


def _read(form: Mapping[str, Any]) -> ResumeToken:
    return ResumeToken.from_hex(form["token"], bytes.fromhex(form.get("typeBits", "")))
