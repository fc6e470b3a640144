"""Typed views over raw oplog entries.

An entry stays the bytes the server wrote; a view knows where its fields lie. The same class views an
entry of the oplog and an operation inside a transaction's `applyOps`, which has the same fields but
no time of its own.
"""

from __future__ import annotations

from typing import Final

from tailrace import raw
from tailrace.errors import OplogEntryInvalid
from tailrace.raw import Span

NO_TIME: Final = 0
"""The `ts` of a `prevOpTime` that points nowhere."""


class OplogEntry:
    """Where the fields of one entry or operation lie, read once."""

    __slots__ = ("raw", "spans")

    def __init__(self, entry: bytes) -> None:
        self.raw = entry
        self.spans: dict[bytes, Span] = {name: (kind, start, end) for kind, name, start, end in raw.elements(entry)}

    def __repr__(self) -> str:
        return f"OplogEntry({raw.to_python(raw.DOCUMENT, self.raw)!r})"

    # --- fields every entry has

    @property
    def op(self) -> bytes:
        """Give the kind of entry: `i`, `u`, `d`, `c` (command) or `n` (no-op)."""
        return raw.string_at(self.raw, self._required(b"op", raw.STRING))

    @property
    def namespace(self) -> bytes:
        """Give `database.collection`, or `database.$cmd` of a command."""
        return raw.string_at(self.raw, self._required(b"ns", raw.STRING))

    @property
    def o(self) -> bytes:
        """Give the document, update, key or command of the operation."""
        return self._document(b"o")

    @property
    def time(self) -> int:
        """Give the cluster time: seconds in the high 32 bits, increment in the low ones."""
        return raw.time_at(self.raw, self._required(b"ts", raw.TIMESTAMP))

    # --- fields some entries have

    @property
    def o2(self) -> bytes | None:
        """Give the key of the document, or what a command or no-op says besides."""
        return self._document(b"o2") if b"o2" in self.spans else None

    @property
    def uuid(self) -> bytes | None:
        """Give the 16 bytes that identify the collection."""
        span = self.spans.get(b"ui")
        if span is None:
            return None
        subtype, payload = raw.binary_at(self.raw, self._required(b"ui", raw.BINARY))
        if subtype != 4 or len(payload) != 16:
            raise OplogEntryInvalid("the collection's `ui` is not a UUID", entry=self.raw)
        return payload

    @property
    def wall(self) -> bytes | None:
        """Give the 8 bytes of the date when the primary wrote the entry."""
        return self._scalar(b"wall", raw.DATE)

    @property
    def txn_number(self) -> bytes | None:
        """Give the 8 bytes of the transaction's (or retryable write's) number."""
        return self._scalar(b"txnNumber", raw.INT64)

    @property
    def lsid(self) -> bytes | None:
        """Give the document that identifies the session."""
        return self._document(b"lsid") if b"lsid" in self.spans else None

    @property
    def multi_op_type(self) -> bytes | None:
        """Give the 4 bytes that say what an `applyOps` with a session is, when it is no transaction."""
        return self._scalar(b"multiOpType", raw.INT32)

    @property
    def from_migrate(self) -> bool:
        """Tell whether a chunk migration wrote the entry, not a client."""
        span = self.spans.get(b"fromMigrate")
        return span is not None and span[0] == raw.BOOL and self.raw[span[1]] == 1

    @property
    def previous_time(self) -> int:
        """Give the time of the entry before this one in the same transaction, or `NO_TIME`."""
        return self._optime(b"prevOpTime")

    @property
    def pre_image_time(self) -> int:
        """Give the time of the no-op that holds the pre-image (4.4 and 5.0), or `NO_TIME`."""
        return self._optime(b"preImageOpTime")

    # --- reading

    def _required(self, name: bytes, kind: int) -> int:
        """Give the offset of a field that must be there with this type."""
        span = self.spans.get(name)
        if span is None:
            raise OplogEntryInvalid(f"an oplog entry has no `{name.decode()}`", entry=self.raw)
        if span[0] != kind:
            raise OplogEntryInvalid(f"`{name.decode()}` of an oplog entry has type 0x{span[0]:02x}", entry=self.raw)
        return span[1]

    def _document(self, name: bytes) -> bytes:
        self._required(name, raw.DOCUMENT)
        _, start, end = self.spans[name]
        return self.raw[start:end]

    def _scalar(self, name: bytes, kind: int) -> bytes | None:
        if name not in self.spans:
            return None
        self._required(name, kind)
        _, start, end = self.spans[name]
        return self.raw[start:end]

    def _optime(self, name: bytes) -> int:
        if name not in self.spans:
            return NO_TIME
        time = raw.time_in(self.raw, b"ts", self._required(name, raw.DOCUMENT))
        if time is None:
            raise OplogEntryInvalid(f"`{name.decode()}` has no time", entry=self.raw)
        return time


def command_name(command: bytes) -> bytes:
    """Give the name of a logged command: the first field of `o`."""
    for _, name, _, _ in raw.elements(command):
        return name
    raise OplogEntryInvalid("a logged command is empty", command=command)


def command_target(command: bytes) -> bytes | None:
    """Give the first field of a logged command as text, None when it is not a string."""
    for kind, _, start, _ in raw.elements(command):
        return raw.string_at(command, start) if kind == raw.STRING else None
    return None
