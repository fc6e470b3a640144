"""Events that no server sends: a document of a snapshot, and a delete or a rename that recovery found.

They are shaped like change events, so that formats and sinks need to know one shape only.
"""

from __future__ import annotations

from functools import lru_cache

import bson
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.capture.document_key import BY_ID, KeyFields

READ = "read"
"""operationType of a document of a snapshot; its record is marked `op: "r"`."""


def snapshot_event(
    namespace: str, document: bytes, token: bytes, cluster_time: Timestamp, fields: KeyFields = BY_ID
) -> bytes:
    """Make the event of a document that a snapshot read.

    `token` and `cluster_time` are those of a position before the read: the document holds every change up to there,
    so a consumer that takes the cluster time as version never lets it win over a newer event. `fields` are those that
    the server's own events of the collection have in their documentKey.
    """
    head, ns = _frame(namespace, token, cluster_time)
    return raw.document(
        head,
        raw.element(raw.DOCUMENT, b"fullDocument", document),
        ns,
        raw.element(raw.DOCUMENT, b"documentKey", fields.of(document)),
    )


def recovered_delete(namespace: str, document_key: bytes, token: bytes, cluster_time: Timestamp) -> bytes:
    """Make the event of a delete that happened in a gap and was found by comparing keys."""
    return raw.document(
        raw.element(raw.DOCUMENT, b"_id", token),
        raw.element(raw.STRING, b"operationType", raw.string("delete")),
        raw.element(raw.TIMESTAMP, b"clusterTime", raw.timestamp(cluster_time)),
        _namespace(namespace),
        raw.element(raw.DOCUMENT, b"documentKey", document_key),
        raw.element(raw.BOOL, b"recovered", raw.boolean(True)),
    )


def recovered_rename(namespace: str, to: str, token: bytes, cluster_time: Timestamp) -> bytes:
    """Make the event of a rename that happened in a gap and was found by the UUID of the collection."""
    return raw.document(
        raw.element(raw.DOCUMENT, b"_id", token),
        raw.element(raw.STRING, b"operationType", raw.string("rename")),
        raw.element(raw.TIMESTAMP, b"clusterTime", raw.timestamp(cluster_time)),
        _namespace(namespace),
        _namespace(to, b"to"),
        raw.element(raw.BOOL, b"recovered", raw.boolean(True)),
    )


@lru_cache(maxsize=256)
def _frame(namespace: str, token: bytes, cluster_time: Timestamp) -> tuple[bytes, bytes]:
    """Make what all documents of a chunk have in common: the fields before the document, and its namespace."""
    head = (
        raw.element(raw.DOCUMENT, b"_id", token),
        raw.element(raw.STRING, b"op", raw.string("r")),
        raw.element(raw.STRING, b"operationType", raw.string(READ)),
        raw.element(raw.TIMESTAMP, b"clusterTime", raw.timestamp(cluster_time)),
    )
    return b"".join(head), _namespace(namespace)


def _namespace(namespace: str, field: bytes = b"ns") -> bytes:
    database, _, collection = namespace.partition(".")
    return raw.element(raw.DOCUMENT, field, bson.encode({"db": database, "coll": collection}))
