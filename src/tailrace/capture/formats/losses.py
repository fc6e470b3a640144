"""What a format would change without a word: found before it is written, so that the user's choice decides.

Formats look for it cheaply (does the decoded event give the same bytes, is there a name with a dollar), and only when
that says so the bytes are walked here to name what is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson
from bson import json_util
from bson.dbref import DBRef

from tailrace import raw
from tailrace.errors import BsonMalformed, EventUnconvertible
from tailrace.raw import extended_json

DEPRECATED: Final = {raw.UNDEFINED: "undefined", raw.DB_POINTER: "a DBPointer", raw.SYMBOL: "a symbol"}
"""Types that Python turns into others."""
HEADER: Final = "unrepresentable"
"""The header of a record that was kept although its format could not carry everything."""


def losses_of(document: bytes, types: dict[int, str] = DEPRECATED) -> Iterator[str]:
    """Name what Extended JSON loses of a document: fields that are there twice, and what is read as something else."""
    try:
        yield from _losses(document, 0, "", types)
    except (BsonMalformed, RecursionError) as error:
        raise EventUnconvertible(f"the event is not BSON: {error}") from error


def _losses(document: bytes, start: int, path: str, types: dict[int, str]) -> Iterator[str]:
    names: set[bytes] = set()
    for kind, name, begin, end in raw.elements(document, start):
        inner = f"{path}.{name.decode(errors='replace')}" if path else name.decode(errors="replace")
        if name in names:
            yield f"{inner} is there twice"
        names.add(name)
        if kind in types:
            yield f"{inner} is {types[kind]}"
        elif kind == raw.DOCUMENT:
            if _is_read_as_a_value(document[begin:end]):
                yield f"{inner} looks like a value of Extended JSON"
            yield from _losses(document, begin, inner, types)
        elif kind == raw.ARRAY:
            yield from _losses(document, begin, inner, types)
        elif kind == raw.CODE_WITH_SCOPE:
            yield from _losses(document, raw.value_end(document, raw.STRING, begin + 4), inner, types)


def _is_read_as_a_value(document: bytes) -> bool:
    """Whether a reader of Extended JSON makes something else of a document, or refuses it."""
    if not any(name.startswith(b"$") for _, name, _, _ in raw.elements(document)):
        return False
    written: dict[str, Any] = orjson.loads(extended_json.relaxed_document(document))
    try:
        found = json_util.object_hook(dict(written), json_util.RELAXED_JSON_OPTIONS)
    except Exception:
        return True
    # A reference is read as one, and written in the same way again.
    return found != written and not (isinstance(found, DBRef) and list(found.as_doc()) == list(written))
