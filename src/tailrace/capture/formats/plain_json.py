"""Plain events as relaxed Extended JSON: the documents of a batch at once, and the text of each event around its own.

The `_id` of most documents is an ObjectId that the key has too. It is left out of what is decoded and written as text
in both places, because making an object of it would cost a tenth of the whole event.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

from bson.datetime_ms import DatetimeMS

from tailrace.capture.formats.headers import headers_of, image_of_update
from tailrace.capture.formats.plain_event import PlainEvent
from tailrace.capture.record import Record, new_record
from tailrace.raw import extended_json

_int64 = Struct("<q").unpack
_pack_int32 = Struct("<i").pack
_join = b"".join

_OBJECT_ID = b'{"_id":{"$oid":"'
_OBJECT_ID_END = b'"}}'
_DOCUMENT = b',"fullDocument":'

Cut = tuple[bytes, PlainEvent | None]
"""An event and where its parts are; None for one that is not plain."""


def plain_json_records(cuts: Sequence[Cut], *, looks_up: bool) -> list[Record | None]:
    """Make the records of plain events, and give None for the others, and for those that JSON may not carry whole."""
    documents, without_ids = _documents(cuts)
    texts = iter(_texts(documents))
    delta, image = (image_of_update(has_image=has_image, is_later=looks_up) for has_image in (False, True))
    records: list[Record | None] = []
    for (event, plain), without_id in zip(cuts, without_ids, strict=True):
        if plain is None:
            records.append(None)
            continue
        token, operation, seconds, increment, wall_time, document, _, namespace, key, key_end, has_object_id, update = (
            plain
        )
        text = next(texts) if document else b""
        update_text = next(texts) if update else b""
        if has_object_id:
            key_text: bytes | None = _OBJECT_ID + hexlify(event[key + 9 : key + 21]) + _OBJECT_ID_END
        else:
            (key_text,) = _texts([event[key:key_end]])
        if text is None or update_text is None or key_text is None:
            records.append(None)
            continue
        count = b"%d" % increment
        second, second_json = _second(seconds)
        headers = headers_of(token, second + count, operation.header)
        parts = [b'{"_id":{"_data":"', token, operation.json, second_json, count, b"}}"]
        if wall_time is not None:
            parts.append(_wall_json(wall_time))
        if document:
            if not without_id:
                parts += (_DOCUMENT, text)
            elif text == b"{}":
                parts += (_DOCUMENT, key_text)
            else:
                parts += (_DOCUMENT, key_text[:-1], b",", text[1:])
        parts += (namespace.json, key_text)
        if update:
            headers.append(image if document else delta)
            parts += (b',"updateDescription":', update_text)
        parts.append(b"}")
        records.append(new_record(Record, (key_text, _join(parts), headers, namespace.name, operation.name, event)))
    return records


def _texts(documents: list[bytes]) -> list[bytes | None]:
    """Write documents as relaxed Extended JSON; None for one that has to be looked at more closely."""
    texts = extended_json.exact_relaxed_documents(documents)
    for number, document in enumerate(documents):
        if b"$" in document and extended_json.may_look_like_a_value(document):
            texts[number] = None
    return texts


def _documents(cuts: Sequence[Cut]) -> tuple[list[bytes], list[bool]]:
    """Give the documents and updates to be written, and of each event whether its document lacks the `_id` there."""
    documents: list[bytes] = []
    without_ids: list[bool] = []
    for event, plain in cuts:
        without_id = False
        if plain is not None:
            _, _, _, _, _, document, end, _, key, _, has_object_id, update = plain
            if document:
                without_id = has_object_id and event.startswith(event[key + 4 : key + 21], document + 4)
                documents.append(
                    _pack_int32(end - document - 17) + event[document + 21 : end] if without_id else event[document:end]
                )
            if update:
                documents.append(event[update:-1])
        without_ids.append(without_id)
    return documents, without_ids


@lru_cache(maxsize=16)
def _second(seconds: int) -> tuple[bytes, bytes]:
    """Write a second as headers and values begin with it; events that come together share it."""
    return b"%d:" % seconds, b'{"$timestamp":{"t":%d,"i":' % seconds


@lru_cache(maxsize=1024)
def _wall_json(wall_time: bytes) -> bytes:
    """Write a wall time; events that come together share it, because it has milliseconds only."""
    return b',"wallTime":%b' % extended_json.relaxed(DatetimeMS(_int64(wall_time)[0]), wall_time)
