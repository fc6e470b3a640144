"""Taking the replies to getMore apart: events and tokens stay bytes, the rest is decoded."""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, TypeAlias

import bson
from bson.codec_options import CodecOptions, TypeRegistry
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument

from tailrace import raw
from tailrace.client.commands import DecodedBatch, Reply, UncutBatch

_BEGINNING: Final = Struct("<4x8si11si")
"""How servers begin a reply: `cursor` and its length, in it `nextBatch` and its length."""
_BATCH_START: Final = _BEGINNING.size - 4
_CURSOR_START: Final = 12
_TOKEN: Final = Struct("<22si")
"""What follows the batch: `postBatchResumeToken` and its length."""

_NO_TYPES: Final = TypeRegistry()
_Parts: TypeAlias = tuple[bytes, bytes, UncutBatch, bytes | None]
"""A reply without its cursor, the cursor without batch and token, the batch, the token."""
SMALL_REPLY: Final = 4096
"""Bytes up to which a reply may be decoded as a whole: a stream that gets such ones is not behind."""


class ReplyReader:
    """Reads the replies of one cursor."""

    def __init__(self, max_wire_version: int, codec: CodecOptions[Any], *, is_monitored: bool) -> None:
        self._max_wire_version = max_wire_version
        self._codec = codec
        self._is_plain = codec.document_class is dict and codec.type_registry == _NO_TYPES
        self._is_monitored = is_monitored
        self.decodes = False
        """Whether the events of small replies are wanted decoded: then one call decodes them with the rest."""
        self.reply: Reply | None = None
        """The last reply that was no error."""

    def read(self, payload: bytes | memoryview) -> dict[str, Any]:
        """Take one reply apart, and give what pymongo looks at: all but the events.

        These are neither decoded nor copied: the next getMore waits for this. Servers put the cursor first, in it the
        batch, then the token: a few comparisons find them.
        """
        if self.decodes and self._is_plain and len(payload) < SMALL_REPLY:
            try:
                return self._read_whole(payload)
            except InvalidBSON:
                pass  # the user will hear of it when that event's turn has come
        parts = _usual_parts(payload) or _parts_in_any_order(bytes(payload))
        if parts is None:
            return bson.decode(payload)
        answer, cursor, batch, token = bson.decode(parts[0]), bson.decode(parts[1]), parts[2], parts[3]
        self.reply = Reply(
            cursor["id"], cursor.get("ns", ""), batch, token, answer.get("operationTime"), self._max_wire_version
        )
        cursor["nextBatch"] = [batch]  # where pymongo expects it
        if token is not None and self._is_monitored:
            cursor["postBatchResumeToken"] = RawBSONDocument(token)
        answer["cursor"] = cursor
        return answer

    def _read_whole(self, payload: bytes | memoryview) -> dict[str, Any]:
        """Decode a small reply with its events."""
        answer: dict[str, Any] = bson.decode(payload, self._codec)
        cursor = answer.get("cursor")
        if cursor is not None:
            batch = DecodedBatch(cursor["nextBatch"], payload)
            token = cursor.get("postBatchResumeToken")
            self.reply = Reply(
                cursor["id"], cursor.get("ns", ""), batch, token, answer.get("operationTime"), self._max_wire_version
            )
        return answer


def _usual_parts(payload: bytes | memoryview) -> _Parts | None:
    """Take a reply apart whose elements stand where servers put them."""
    if len(payload) < _BEGINNING.size + _TOKEN.size:
        return None
    cursor_name, cursor_size, batch_name, batch_size = _BEGINNING.unpack_from(payload)
    if cursor_name != b"\x03cursor\x00" or batch_name != b"\x04nextBatch\x00":
        return None
    batch_end, cursor_end = _BATCH_START + batch_size, _CURSOR_START + cursor_size
    token_name, token_size = _TOKEN.unpack_from(payload, batch_end)
    if token_name != b"\x03postBatchResumeToken\x00":
        return None
    token_start = batch_end + _TOKEN.size - 4
    token_end = token_start + token_size
    rest = raw.document(bytes(payload[cursor_end:-1]))
    cursor = raw.document(bytes(payload[token_end : cursor_end - 1]))
    return rest, cursor, UncutBatch(payload, _BATCH_START, batch_end), bytes(payload[token_start:token_end])


def _parts_in_any_order(data: bytes) -> _Parts | None:
    """Take a reply apart whose elements may come in any order; None for one without a batch, as of an error."""
    found = raw.find(data, b"cursor")
    batch = None if found is None else raw.find(data, b"nextBatch", found[1])
    if found is None or batch is None:
        return None
    token = raw.field(data, b"postBatchResumeToken", found[1])
    rest = raw.without(data, b"cursor")
    cursor = raw.without(data[found[1] : found[2]], b"nextBatch", b"postBatchResumeToken")
    return rest, cursor, UncutBatch(data, batch[1], batch[2]), None if token is None else token.data
