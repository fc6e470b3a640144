"""Replies as a server writes them."""

from __future__ import annotations

from typing import Final

from tailrace import raw
from tailrace.errors import ChangeStreamError
from tailrace.raw import Value

RESUMABLE: Final = frozenset(
    {6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436}
)
"""Codes after which a driver may resume a change stream; servers since 4.4 say so by a label."""
RESUMABLE_LABEL: Final = "ResumableChangeStreamError"
_CURSOR_NAME_SIZE: Final = len(b"\x03cursor\x00")
_OK: Final = raw.element(raw.DOUBLE, b"ok", raw.double(1.0))
_NOT_OK: Final = raw.element(raw.DOUBLE, b"ok", raw.double(0.0))


def ok(*elements: bytes) -> bytes:
    """Give a reply of success with these elements before `ok`."""
    return raw.document(*elements, _OK)


def failure(message: str, code: int, name: str, labels: tuple[str, ...] = ()) -> bytes:
    """Give a reply of failure."""
    elements = [
        _NOT_OK,
        raw.element(raw.STRING, b"errmsg", raw.string(message)),
        raw.element(raw.INT32, b"code", raw.int32(code)),
        raw.element(raw.STRING, b"codeName", raw.string(name)),
    ]
    if labels:
        listed = raw.array([Value(raw.STRING, raw.string(label)) for label in labels])
        elements.append(raw.element(raw.ARRAY, b"errorLabels", listed))
    return raw.document(*elements)


def refusal(error: ChangeStreamError, *, says_resumable: bool) -> bytes:
    """Give the reply for an error of a stream; servers since 4.4 say so when it can be resumed."""
    labels = tuple(error.labels)
    if says_resumable and error.server_code in RESUMABLE and RESUMABLE_LABEL not in labels:
        labels += (RESUMABLE_LABEL,)
    return failure(error.message, error.server_code or 8, error.server_code_name, labels)


def cursor(
    batch_name: bytes, elements: bytes, resume_token: bytes, cursor_id: int, namespace: str, times: bytes
) -> tuple[bytes, bytes, bytes]:
    """Give the reply of `aggregate` or `getMore` in three parts, of which the middle one is the batch as it is."""
    behind = b"".join((
        b"\x00\x03postBatchResumeToken\x00", resume_token, b"\x12id\x00", raw.int64(cursor_id), b"\x02ns\x00",
        raw.string(namespace), b"\x00",
    ))  # fmt: skip
    array_size = 4 + len(elements) + 1
    inner_size = 4 + 1 + len(batch_name) + 1 + 4 + len(elements) + len(behind)
    outside = b"".join((_OK, times, b"\x00"))
    size = 4 + _CURSOR_NAME_SIZE + inner_size + len(outside)
    before = b"".join((
        raw.int32(size), b"\x03cursor\x00", raw.int32(inner_size), b"\x04", batch_name, b"\x00", raw.int32(array_size),
    ))  # fmt: skip
    return before, elements, behind + outside


def times(cluster_time: bytes | None, operation_time: bytes) -> bytes:
    """Give the elements that a server adds to every reply: its cluster time, signed, and the newest operation's."""
    signed = b"" if cluster_time is None else raw.element(raw.DOCUMENT, b"$clusterTime", cluster_time)
    return signed + raw.element(raw.TIMESTAMP, b"operationTime", operation_time)
