"""A token in words: its parts under MongoDB's names, for people who look inside one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import bson
from bson.codec_options import CodecOptions, DatetimeConversion

from tailrace.token.resume_token import TokenData

_SHOWN: CodecOptions[dict[str, Any]] = CodecOptions(
    unicode_decode_error_handler="replace", datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
"""An `_id` may be any text and any date."""


def describe(data: TokenData) -> dict[str, Any]:
    """Give the parts of a token by MongoDB's names, without those it does not have."""
    time = data.cluster_time
    described: dict[str, Any] = {
        "tokenType": data.kind.name.lower().replace("_", " "),
        "clusterTime": time,
        "date": datetime.fromtimestamp(time.time, UTC).isoformat().replace("+00:00", "Z"),
        "version": data.version,
        "txnOpIndex": data.txn_op_index,
        "fromInvalidate": data.from_invalidate,
    }
    if data.uuid is not None:
        described["uuid"] = str(UUID(bytes=data.uuid))
    if data.event_identifier is not None:
        described["eventIdentifier"] = bson.decode(data.event_identifier, _SHOWN)
    if data.fragment is not None:
        described["fragmentNum"] = data.fragment
    return described
