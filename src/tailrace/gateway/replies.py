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


def cursor(batch_name: bytes, elements: bytes, position: bytes, cursor_id: int, namespace: str) -> bytes:
    """Give the reply of `aggregate` or `getMore`: a batch as array elements, and the position behind it."""
    inner = raw.document(
        raw.element(raw.ARRAY, batch_name, raw.document(elements)),
        raw.element(raw.DOCUMENT, b"postBatchResumeToken", position),
        raw.element(raw.INT64, b"id", raw.int64(cursor_id)),
        raw.element(raw.STRING, b"ns", raw.string(namespace)),
    )
    return ok(raw.element(raw.DOCUMENT, b"cursor", inner))


def with_times(reply: bytes, cluster_time: bytes | None, operation_time: bytes) -> bytes:
    """Add the cluster time, as the upstream signed it, and the time of the newest operation (8 bytes)."""
    parts = []
    if cluster_time is not None:
        parts.append(raw.element(raw.DOCUMENT, b"$clusterTime", cluster_time))
    return raw.append(reply, *parts, raw.element(raw.TIMESTAMP, b"operationTime", operation_time))
