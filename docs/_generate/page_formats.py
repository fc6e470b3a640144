"""One event in every format, made by the formats themselves."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import bson
from bson import Timestamp

from tailrace.capture.formats import make_format
from tailrace.token import ResumeToken, TokenData

_TIME = Timestamp(1777636800, 1)
_KEY = {"_id": 1}
_MARK = re.compile(r"<!-- a record in (\w+) -->")


def filled(text: str) -> str:
    """Put a record where the page asks for one."""
    return _MARK.sub(lambda mark: _shown(mark.group(1)), text)


def event() -> bytes:
    """Make the event that all formats show."""
    token = ResumeToken.encode(TokenData(_TIME, uuid=bytes(range(16)), event_identifier=bson.encode(_KEY)))
    return bson.encode(
        {
            "_id": token.to_document(),
            "operationType": "insert",
            "clusterTime": _TIME,
            "wallTime": datetime(2026, 5, 1, 12, tzinfo=UTC),
            "fullDocument": {"_id": 1, "total": 20, "customer": {"name": "Ada"}},
            "ns": {"db": "shop", "coll": "orders"},
            "documentKey": _KEY,
        }
    )


def _shown(name: str) -> str:
    record = make_format(name, fields=("total", "customer.name")).records(event())[0]
    key, value = (part.decode() if part else "null" for part in (record.key, record.value))
    return f"Key:\n\n```json\n{key}\n```\n\nValue:\n\n```json\n{value}\n```"
