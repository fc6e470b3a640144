"""Replies as a server writes them."""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace import raw, server_codes
from tailrace.errors import ChangeStreamError
from tailrace.hub import Batch
from tailrace.raw import Value

RESUMABLE_LABEL: Final = "ResumableChangeStreamError"
_CURSOR_NAME_SIZE: Final = len(b"\x03cursor\x00")
_ID_SIZE: Final = 8
_OK: Final = raw.element(raw.DOUBLE, b"ok", raw.double(1.0))
_NOT_OK: Final = raw.element(raw.DOUBLE, b"ok", raw.double(0.0))


def ok(*elements: bytes) -> bytes:
    """Give a reply of success with these elements before `ok`."""
    return raw.document(*elements, _OK)


def failure(message: str, code: int, labels: tuple[str, ...] = (), *, name: str | None = None) -> bytes:
    """Give a reply of failure."""
    elements = [
        _NOT_OK,
        raw.element(raw.STRING, b"errmsg", raw.string(message)),
        raw.element(raw.INT32, b"code", raw.int32(code)),
        raw.element(raw.STRING, b"codeName", raw.string(server_codes.name_of(code) if name is None else name)),
    ]
    if labels:
        listed = raw.array([Value(raw.STRING, raw.string(label)) for label in labels])
        elements.append(raw.element(raw.ARRAY, b"errorLabels", listed))
    return raw.document(*elements)


def refusal(error: ChangeStreamError, *, labels_resumable: bool) -> bytes:
    """Give the reply for an error of a stream; servers since 4.4 say so when it can be resumed."""
    labels = tuple(error.labels)
    if labels_resumable and error.server_code in server_codes.RESUMABLE and RESUMABLE_LABEL not in labels:
        labels += (RESUMABLE_LABEL,)
    if not error.server_code:
        return failure(error.message, server_codes.UNKNOWN_ERROR, labels)
    return failure(error.message, error.server_code, labels, name=error.server_code_name)


class CursorReply(NamedTuple):
    """The reply of `aggregate` or `getMore` to all who stand at the same place: only the cursor's id differs."""

    before: bytes
    batch: bytes
    resume_token: bytes
    behind: bytes

    def for_cursor(self, cursor_id: int) -> tuple[bytes, ...]:
        """Give the parts of one client's reply; the batch itself is not copied."""
        return self.before, self.batch, self.resume_token + raw.int64(cursor_id) + self.behind

    @classmethod
    def of(cls, batch_name: bytes, batch: Batch, namespace: str, times: bytes) -> CursorReply:
        """Put a batch into a reply."""
        token = b"".join((b"\x00\x03postBatchResumeToken\x00", batch.token, b"\x12id\x00"))
        end_of_cursor = b"".join((b"\x02ns\x00", raw.string(namespace), b"\x00"))
        elements = batch.elements
        array_size = 4 + len(elements) + 1
        inner_size = 4 + 1 + len(batch_name) + 1 + 4 + len(elements) + len(token) + _ID_SIZE + len(end_of_cursor)
        outside = b"".join((_OK, times, b"\x00"))
        size = 4 + _CURSOR_NAME_SIZE + inner_size + len(outside)
        before = b"".join((
            raw.int32(size), b"\x03cursor\x00", raw.int32(inner_size), b"\x04", batch_name, b"\x00",
            raw.int32(array_size),
        ))  # fmt: skip
        return cls(before, elements, token, end_of_cursor + outside)


class SharedReplies:
    """The reply that was made last, for the clients who get the same one next."""

    def __init__(self) -> None:
        self._key: tuple[bytes, str, bytes] | None = None
        self._batch: Batch | None = None
        self._reply: CursorReply | None = None
        self._newest: tuple[bytes | None, int] = (None, -1)
        self._times = b""

    def times(self, cluster_time: bytes | None, reached: int) -> bytes:
        """Give the elements that a server adds to every reply: its cluster time, signed, and the newest operation's."""
        if self._newest != (cluster_time, reached):
            signed = b"" if cluster_time is None else raw.element(raw.DOCUMENT, b"$clusterTime", cluster_time)
            operation = raw.element(raw.TIMESTAMP, b"operationTime", reached.to_bytes(8, "little"))
            self._newest, self._times = (cluster_time, reached), signed + operation
        return self._times

    def of(self, batch_name: bytes, batch: Batch, namespace: str, times: bytes) -> CursorReply:
        """Give the reply for a batch."""
        key = batch_name, namespace, times
        if self._reply is None or batch is not self._batch or key != self._key:
            self._reply = CursorReply.of(batch_name, batch, namespace, times)
            self._key, self._batch = key, batch if batch.events else None
        return self._reply
