"""BSON values as JSON without the types of BSON, as `flat` and `jsonschema` have them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from tailrace.raw import extended_json
from tailrace.raw.cluster_time import ClusterTime

_FIRST_YEAR_MS: Final = -62_135_596_800_000
_LAST_YEAR_MS: Final = 253_402_300_799_999


def loss_of_scalar(value: Any, path: str) -> str | None:
    """Name a number or a date that JSON has no form for."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path} is {value}"
    if is_distant(value):
        return f"{path} is a date outside the years 1 to 9999"
    return None


def is_distant(value: Any) -> bool:
    """Whether a value is a date outside the years 1 to 9999: ISO 8601 has no text for it, nor most consumers a type."""
    return isinstance(value, DatetimeMS) and not _FIRST_YEAR_MS <= int(value) <= _LAST_YEAR_MS


def date_text(milliseconds: int) -> str | None:
    """Give a date as ISO 8601; None outside the years 1 to 9999."""
    known = extended_json.date_text(milliseconds)
    if known is not None or not _FIRST_YEAR_MS <= milliseconds < 0:
        return known
    seconds, rest = divmod(milliseconds, 1000)
    text = (datetime(1970, 1, 1) + timedelta(seconds=seconds)).isoformat()
    return f"{text}.{rest:03d}Z" if rest else f"{text}Z"


def plain_value(value: Any) -> Any:
    """Give what JSON has for a BSON value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)
    return _plain_object(value)


def _plain_object(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain_value(inner) for inner in value]
    if isinstance(value, ObjectId):
        return value.binary.hex()
    if isinstance(value, DatetimeMS):
        return date_text(int(value)) or int(value)
    if isinstance(value, bytes | Binary):
        return base64.b64encode(value).decode()
    if isinstance(value, Timestamp):
        return int(ClusterTime.from_timestamp(value))
    return extended_json.decimal_text(value) if isinstance(value, Decimal128) else str(value)
