"""Documents for people to look at. Whatever a server stores can be shown, also what `bson` refuses to decode.

Servers check less than drivers: they store strings that are not UTF-8, dates beyond the year 9999, old binaries without
their inner length, UUIDs of three bytes and decimals of more than 34 digits.
"""

from __future__ import annotations

from typing import Any, Final

import bson
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion

from tailrace.errors import EventUnconvertible
from tailrace.raw import bson_bytes as raw
from tailrace.raw import extended_json

_OPTIONS: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    unicode_decode_error_handler="replace", datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
_GENERIC_SUBTYPE: Final = 0


def decode_for_display(document: bytes) -> dict[str, Any]:
    """Decode a document: what is not UTF-8 becomes U+FFFD, a binary that is not as its subtype says a generic one."""
    try:
        return bson.decode(document, _OPTIONS)
    except bson.InvalidBSON:
        return bson.decode(_readable(document), _OPTIONS)


def text_for_display(document: bytes, *, canonical: bool = False) -> str:
    """Give a document as Extended JSON; a decimal of more than 34 digits is the zero that servers take it for."""
    options = json_util.CANONICAL_JSON_OPTIONS if canonical else json_util.RELAXED_JSON_OPTIONS
    try:
        return json_util.dumps(decode_for_display(document), json_options=options)
    except ArithmeticError:
        return json_util.dumps(bson.decode(_readable(document), _OPTIONS), json_options=options)


def relaxed_for_display(document: bytes) -> bytes:
    """Give a document as relaxed Extended JSON, at the speed of `extended_json` where that can write it."""
    try:
        return extended_json.relaxed_document(document)
    except EventUnconvertible:
        return text_for_display(document).encode()


def _readable(document: bytes) -> bytes:
    """Change, in place, the values that `bson` refuses: none of them gets longer or shorter."""
    changed = bytearray(document)
    pending = [0]
    while pending:
        for kind, _, begin, end in raw.elements(document, pending.pop()):
            if kind in (raw.DOCUMENT, raw.ARRAY):
                pending.append(begin)
            elif kind == raw.CODE_WITH_SCOPE:
                pending.append(raw.value_end(document, raw.STRING, begin + 4, end))
            elif kind == raw.BINARY and not _is_decodable(kind, document[begin:end]):
                changed[begin + 4] = _GENERIC_SUBTYPE
            elif kind == raw.DECIMAL128 and not _is_decodable(kind, document[begin:end]):
                changed[begin : begin + 14], changed[begin + 14] = bytes(14), changed[begin + 14] & ~1
    return bytes(changed)


def _is_decodable(kind: int, data: bytes) -> bool:
    try:
        str(bson.decode(raw.document(raw.element(kind, b"v", data)))["v"])
    except (bson.InvalidBSON, ArithmeticError):
        return False
    return True
