"""A position: where a stream stands, and what was delivered up to there."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import bson
import orjson
from bson import json_util
from bson.timestamp import Timestamp

from tailrace.errors import PositionInvalid
from tailrace.token import ResumeToken
from tailrace.token.shard_positions import read_positions, with_positions

FORM = 1
"""The version of the JSON form; a reader refuses a higher one instead of guessing."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What was delivered under a name since its first position."""

    events: int = 0
    bytes: int = 0
    batches: int = 0
    dead_letters: int = 0

    def plus(self, *, events: int = 0, bytes: int = 0, batches: int = 0, dead_letters: int = 0) -> Counts:
        """Give the counts after one more delivery."""
        return Counts(
            self.events + events, self.bytes + bytes, self.batches + batches, self.dead_letters + dead_letters
        )


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a stream: everything up to it is delivered, nothing after it is known to be.

    `token` is a resume token, of an event or a bare high-water mark, as the BSON document the server gave. None means
    that only the time is known: the stream starts at `cluster_time`.
    """

    token: bytes | None
    cluster_time: Timestamp
    shards: Mapping[str, bytes] = field(default_factory=dict)
    """The token of each shard, where shards are read one by one; `token` is then the merged low-water mark."""
    fingerprint: str = ""
    """What `fingerprint_of` gave for the stream; a token is good for that stream alone."""
    counts: Counts = Counts()
    writer: str = ""
    """Who saved it; set by the store."""
    epoch: int = 0
    """The writer's lease; it grows with every acquisition. Set by the store."""
    saved_at: datetime | None = None
    """When it was saved; set by the store."""

    @classmethod
    def behind(cls, token: bytes, *, fingerprint: str = "") -> Position:
        """Give the position that a resume token stands for, which may hold that of each shard."""
        parsed, shards = ResumeToken.parse(token), read_positions(bson.decode(token))
        return cls(
            parsed.to_bson() if shards else token,
            parsed.cluster_time,
            {name: position.to_bson() for name, position in shards.items()},
            fingerprint,
        )

    @property
    def resume_token(self) -> bytes | None:
        """The token to go on behind, with that of each shard in it; None when only the time is known."""
        if self.token is None:
            return None
        return with_positions(self.token, {name: ResumeToken.parse(token) for name, token in self.shards.items()})

    def signed(self, writer: str, epoch: int, saved_at: datetime) -> Position:
        """Give the position as a store keeps it, with its writer."""
        return replace(self, writer=writer, epoch=epoch, saved_at=saved_at)

    def to_json(self) -> dict[str, Any]:
        """Give the form that is stored, exported and shown; tokens are Extended JSON."""
        return {
            "form": FORM,
            "token": _token_to_json(self.token),
            "cluster_time": {"t": self.cluster_time.time, "i": self.cluster_time.inc},
            "shards": {shard: _token_to_json(token) for shard, token in self.shards.items()},
            "fingerprint": self.fingerprint,
            "counts": asdict(self.counts),
            "writer": self.writer,
            "epoch": self.epoch,
            "saved_at": self.saved_at.isoformat() if self.saved_at else None,
        }

    @classmethod
    def from_json(cls, form: Any) -> Position:
        """Read what `to_json` gave; PositionInvalid names the part that does not fit."""
        try:
            if form["form"] != FORM:
                raise PositionInvalid(f"positions of form {form['form']} are not known here")
            saved_at = form["saved_at"]
            return cls(
                token=_token_from_json(form["token"]),
                cluster_time=Timestamp(form["cluster_time"]["t"], form["cluster_time"]["i"]),
                shards={shard: _required_token(token) for shard, token in form["shards"].items()},
                fingerprint=str(form["fingerprint"]),
                counts=Counts(**form["counts"]),
                writer=str(form["writer"]),
                epoch=int(form["epoch"]),
                saved_at=datetime.fromisoformat(saved_at).astimezone(UTC) if saved_at else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError, bson.errors.BSONError) as error:
            raise PositionInvalid(f"this is not a position: {type(error).__name__} {error}") from None


def _token_to_json(token: bytes | None) -> Any:
    if token is None:
        return None
    return orjson.loads(json_util.dumps(bson.decode(token), json_options=json_util.CANONICAL_JSON_OPTIONS))


def _token_from_json(form: Any) -> bytes | None:
    return None if form is None else _required_token(form)


def _required_token(form: Any) -> bytes:
    if not isinstance(form, dict) or not form:
        raise ValueError(f"a token is a document, not {form!r}")
    return bson.encode(json_util.loads(orjson.dumps(form)))


def this_process() -> str:
    """Give a name that no other process has: host, its boot and process namespace, process id and start time."""
    return f"{_machine()}/{os.getpid()}/{_start_time(os.getpid())}"


def has_ended(owner: str) -> bool:
    """Whether the owner was a process of this machine and is gone, so that nobody need wait for its lease.

    False when that cannot be known: the process ran on another machine or in another container.
    """
    machine, _, rest = owner.rpartition("/")
    machine, _, pid = machine.rpartition("/")
    if machine != _machine() or not pid.isdigit():
        return False
    return _start_time(int(pid)) != rest


@cache
def _machine() -> str:
    """Machines may share their name, and the number of their first process namespace, but no two boots their id."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return f"{socket.gethostname()}/{uuid.getnode():012x}/unknown"
    return f"{socket.gethostname()}/{boot.partition('-')[0]}/{namespace}"


def _start_time(pid: int) -> str:
    """Give the start time in clock ticks since boot; empty when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    after_name = stat.rpartition(")")[2].split()
    return "" if after_name[0] == "Z" else after_name[19]
