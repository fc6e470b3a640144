"""A record as one JSON object, for sinks that carry keys, values and headers in one text."""

from __future__ import annotations

import base64

import orjson

from tailrace.capture.record import Record


def record_json(record: Record, *, is_json: bool) -> bytes:
    """Write namespace, operation, token, cluster time, key and value.

    Keys and values that are JSON are in it as they are, others (`bson`) as base64; a tombstone's value is null.
    """
    headers = dict(record.headers)
    return orjson.dumps(
        {
            "ns": record.namespace,
            "op": record.operation,
            "token": headers.get("token", b"").decode(),
            "clusterTime": headers.get("clusterTime", b"").decode(),
            "key": _part(record.key, is_json),
            "value": _part(record.value, is_json),
        }
    )


def _part(data: bytes | None, is_json: bool) -> object:
    if data is None:
        return None
    return orjson.Fragment(data) if is_json else base64.b64encode(data).decode()
