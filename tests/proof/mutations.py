"""What an engine could get wrong on a server that nobody has seen: each changes some of its events a little."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import bson
from bson import Int64

from tailrace import raw
from tailrace.engine.dialect import Dialect
from tailrace.event import ChangeEvent

Mutation = Callable[[bytes], bytes | None]


def _fields(event: bytes) -> list[tuple[bytes, int, bytes]]:
    return [(name, kind, event[begin:end]) for kind, name, begin, end in raw.elements(event)]


def _made(fields: list[tuple[bytes, int, bytes]]) -> bytes:
    return raw.document(*(raw.element(kind, name, data) for name, kind, data in fields))


def without(name: bytes, event: bytes) -> bytes:
    return raw.without(event, name)


def moved_last(name: bytes, event: bytes) -> bytes:
    fields = _fields(event)
    return _made([f for f in fields if f[0] != name] + [f for f in fields if f[0] == name])


def renamed(name: bytes, new: bytes, event: bytes) -> bytes:
    return _made([(new if f[0] == name else f[0], f[1], f[2]) for f in _fields(event)])


def changed(name: bytes, change: Callable[[int, bytes], tuple[int, bytes]], event: bytes) -> bytes:
    return _made([(f[0], *change(f[1], f[2])) if f[0] == name else f for f in _fields(event)])


def added(name: bytes, event: bytes) -> bytes:
    return raw.append(event, raw.element(raw.INT32, name, raw.int32(1)))


def nulled(name: bytes, event: bytes) -> bytes:
    return raw.append(event, raw.element(raw.NULL, name, b""))


def _with_paths(update: dict) -> None:
    update.setdefault("disambiguatedPaths", {})


def _as_delete(kind: int, _: bytes) -> tuple[int, bytes]:
    return kind, raw.string("delete")


def of_type(operation: str, mutate: Mutation, event: bytes) -> bytes | None:
    return mutate(event) if ChangeEvent(event).operation_type == operation else event


def token_text(change: Callable[[str], str], event: bytes) -> bytes:
    def changed_token(kind: int, data: bytes) -> tuple[int, bytes]:
        token = bson.decode(data)
        return kind, bson.encode({**token, "_data": change(token["_data"])})

    return changed(b"_id", changed_token, event)


def type_bits(event: bytes) -> bytes:
    """The last byte before the end of a token's KeyString tells which number types its values had."""

    def with_bits(kind: int, data: bytes) -> tuple[int, bytes]:
        return kind, bson.encode({**bson.decode(data), "_typeBits": b"\x41"})

    return changed(b"_id", with_bits, event)


def decoded(name: bytes, change: Callable[[dict], object], event: bytes) -> bytes:
    def made_again(kind: int, data: bytes) -> tuple[int, bytes]:
        document = bson.decode(data)
        change(document)
        return kind, bson.encode(document)

    return changed(name, made_again, event)


def every(count: int, mutate: Mutation) -> Mutation:
    """Be right most of the time: only each so-manyth event is changed, by its time."""
    return lambda event: mutate(event) if ChangeEvent(event).token_time % count == 0 else event


def lost(_: bytes) -> None:
    return None


def _one_later(kind: int, data: bytes) -> tuple[int, bytes]:
    return kind, raw.int64(raw.int64_at(data) + 1)


def _reversed(document: dict) -> None:
    items = list(document.items())
    document.clear()
    document.update(reversed(items))


def _long_id(kind: int, key: bytes) -> tuple[int, bytes]:
    id = raw.field(key, b"_id")
    if id is None or id.kind != raw.INT32:
        return kind, key
    return kind, bson.encode({"_id": Int64(raw.int32_at(id.data))})


OUTPUT: dict[str, Mutation] = {
    "no wall time": partial(without, b"wallTime"),
    "wall time a millisecond later": partial(changed, b"wallTime", _one_later),
    "wall time last": partial(moved_last, b"wallTime"),
    "cluster time an increment later": partial(changed, b"clusterTime", _one_later),
    "cluster time before the operation type": partial(moved_last, b"operationType"),
    "no cluster time": partial(without, b"clusterTime"),
    "no UUID": partial(without, b"collectionUUID"),
    "UUID by another name": partial(renamed, b"collectionUUID", b"uuid"),
    "UUID of another subtype": partial(changed, b"collectionUUID", lambda k, d: (k, d[:4] + b"\x03" + d[5:])),
    "namespace last": partial(moved_last, b"ns"),
    "namespace without its collection": partial(decoded, b"ns", lambda d: d.pop("coll", None)),
    "namespace turned round": partial(decoded, b"ns", _reversed),
    "document key last": partial(moved_last, b"documentKey"),
    "no document key": partial(without, b"documentKey"),
    "document key of another number type": partial(changed, b"documentKey", _long_id),
    "document of an insert missing": partial(of_type, "insert", partial(without, b"fullDocument")),
    "document of a delete null": partial(of_type, "delete", partial(nulled, b"fullDocument")),
    "fields of a document turned round": partial(of_type, "replace", partial(decoded, b"fullDocument", _reversed)),
    "no truncated arrays": partial(decoded, b"updateDescription", lambda d: d.pop("truncatedArrays", None)),
    "truncated arrays first": partial(decoded, b"updateDescription", _reversed),
    "no removed fields": partial(decoded, b"updateDescription", lambda d: d.update(removedFields=[])),
    "updated fields turned round": partial(decoded, b"updateDescription", lambda d: _reversed(d["updatedFields"])),
    "disambiguated paths where none belong": partial(decoded, b"updateDescription", _with_paths),
    "no description of an operation": partial(without, b"operationDescription"),
    "target of a rename missing": partial(of_type, "rename", partial(without, b"to")),
    "session before the key": partial(moved_last, b"lsid"),
    "no number of the transaction": partial(without, b"txnNumber"),
    "number of the transaction as int": partial(changed, b"txnNumber", lambda k, d: (raw.INT32, d[:4])),
    "a new field": partial(added, b"nsType"),
    "token in small letters": partial(token_text, str.lower),
    "token of another version": partial(token_text, lambda t: t[:20] + ("02" if t[20:22] == "04" else "04") + t[22:]),
    "token without its end": partial(token_text, lambda t: t[:-2]),
    "token a second later": partial(token_text, lambda t: f"{t[:2]}{int(t[2:10], 16) + 1:08X}{t[10:]}"),
    "type bits that are not there": type_bits,
    "each third wall time a millisecond later": every(3, partial(changed, b"wallTime", _one_later)),
    "each fifth token in small letters": every(5, partial(token_text, str.lower)),
    "updates lost": partial(of_type, "update", lost),
    "each fourth event lost": every(4, lost),
    "drops as deletes": partial(of_type, "drop", partial(changed, b"operationType", _as_delete)),
    "operation type of another case": partial(changed, b"operationType", lambda k, d: (k, d.title())),
}  # fmt: skip

DIALECT: dict[str, dict[str, object]] = {
    "speaks of no wall time": {"has_wall_time": False},
    "makes tokens of version 1": {"default_token_version": 1},
    "makes tokens of version 2": {"default_token_version": 2},
    "knows no batches of writes": {"logs_batches_of_writes": False},
    "knows no disambiguated paths": {"has_disambiguated_paths": False},
    "knows disambiguated paths": {"has_disambiguated_paths": True},
}


def mutated(dialect: Dialect, habits: dict[str, object]) -> Dialect:
    """Give the dialect with other habits."""
    other = Dialect(dialect.version)
    other.__dict__.update(habits)
    return other
