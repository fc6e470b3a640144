"""What is mutated: inputs that real servers, clients and users made, one kind for each door into the product."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import bson

from tailrace.capture.formats import FormatOptions
from tailrace.engine.recording import read_recording
from tailrace.event import token_of
from tailrace.settings import describe

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "data" / "recordings"
VERSIONS = ("4.2.6", "5.0.4", "6.0.5", "7.0.28")
FORMATS = ("json", "canonical", "bson", "flat", "debezium")
_SPECIAL = (
    b"\xff\xff\xff\xff",
    b"\0\0\0\x80",
    b"\xff\xff\xff\x7f",
    b"\5\0\0\0",
    b"\0",
    b"\xff",
    b'"',
    b"\n",
    b"=",
    b"[",
)


def recorded_events(version: str) -> list[bytes]:
    """All events of a recording."""
    with gzip.open(RECORDINGS / f"{version}.jsonl.gz") as lines:
        read = [json.loads(line) for line in lines]
    return [base64.b64decode(line["bson"]) for line in read if line["kind"] == "event" and "bson" in line]


def events() -> list[bytes]:
    """Change events of every server version."""
    return [event for version in VERSIONS for event in recorded_events(version)]


def tokens() -> list[bytes]:
    """Resume tokens as BSON documents, and their digits alone."""
    documents = [token_of(event) for event in recorded_events("6.0.5") + recorded_events("7.0.28")]
    return documents + [bson.decode(each)["_data"].encode() for each in documents]


def oplog_entries() -> list[bytes]:
    """Oplog entries of every kind, commands and transactions among them."""
    return [
        entry
        for version in VERSIONS
        for entry in read_recording([RECORDINGS / f"{version}.jsonl.gz"]).shards[""].entries
    ]


def records(name: str) -> list[bytes]:
    """Records of a format: the length of the key in four bytes, the key, and the value."""
    fields = ["a", "_id", "b.c"] if name == "flat" else ()
    format = FormatOptions(name, fields=fields, keeps_unrepresentable=True).make()
    made = format.batch(recorded_events("6.0.5"))
    keys = [record.key or b"" for record in made]
    return [
        len(key).to_bytes(4, "little") + key + (record.value or b"") for key, record in zip(keys, made, strict=True)
    ]


def settings_files() -> list[bytes]:
    """A settings file with every key and its default, and some that users write."""
    lines: list[str] = []
    for section, keys in groupby(describe(), lambda row: row[0].partition(".")[0]):
        lines.append(f"[{section}]")
        lines += [f"{row[0].partition('.')[2]} = {_toml(row[2])}" for row in keys if _toml(row[2]) is not None]
    written = (
        '[mongodb]\nuri = "mongodb://h:1/?replicaSet=rs"\n[capture]\nnamespaces = ["shop.orders", "/^a/"]\n'
        'sink = "kafka://h:9092?acks=all"\nformat = "flat"\nfields = ["a.b", "c"]\n'
        '[[policy.rules]]\nnamespace = "shop.*"\nhash = ["email"]\n[capture.topics]\n"shop.orders" = "orders"\n'
    )
    return ["\n".join(lines).encode(), written.encode()]


def _toml(value: object) -> str | None:
    return json.dumps(value) if isinstance(value, str | int | float | bool) else None


def frames() -> list[bytes]:
    """Messages of the wire protocol, as drivers send them."""
    lsid = {"id": bson.Binary(b"1" * 16, 4)}
    commands = [
        {"hello": 1, "$db": "admin", "client": {"driver": {"name": "x"}}, "compression": ["zlib"]},
        {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "shop", "lsid": lsid},
        {"getMore": bson.Int64(7), "collection": "c", "maxTimeMS": 5, "$db": "shop"},
        {"killCursors": "c", "cursors": [bson.Int64(7)], "$db": "shop"},
        {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"n,,n=a,r=b", "$db": "admin"},
    ]  # fmt: skip
    return (
        [_message(each) for each in commands]
        + [_query(commands[0])]
        + [_compressed(_message(each)) for each in commands]
    )


def _framed(opcode: int, payload: bytes) -> bytes:
    head = (16 + len(payload), 7, 0, opcode)
    return b"".join(number.to_bytes(4, "little") for number in head) + payload


def _message(command: dict[str, object]) -> bytes:
    return _framed(2013, b"\0\0\0\0\0" + bson.encode(command))


def _query(command: dict[str, object]) -> bytes:
    body = bson.encode({name: value for name, value in command.items() if name != "$db"})
    return _framed(2004, b"\0\0\0\0admin.$cmd\0" + b"\0\0\0\0\xff\xff\xff\xff" + body)


def _compressed(frame: bytes) -> bytes:
    payload = frame[16:]
    head = (2013).to_bytes(4, "little") + len(payload).to_bytes(4, "little") + b"\2"
    return _framed(2012, head + zlib.compress(payload))


def mutants(seeds: list[bytes], seed: int, *, is_bson: bool) -> Iterator[bytes]:
    """Give one damaged input after the other, for ever; mostly the length of a document is made right again."""
    chance = random.Random(seed)
    while True:
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.choice((1, 1, 2, 3, 8))):
            _damage(chance, data, seeds)
        if is_bson and len(data) >= 4 and chance.random() < 0.9:
            data[:4] = len(data).to_bytes(4, "little")
        yield bytes(data)


def _damage(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    place = chance.randrange(len(data) + 1)
    choice = chance.randrange(6)
    if choice == 0:
        del data[place : place + chance.randint(1, 9)]
    elif choice == 1:
        data[place:place] = data[place : place + chance.randint(1, 40)]
    elif choice == 2:
        special = chance.choice(_SPECIAL)
        data[place : place + len(special)] = special
    elif choice == 3:
        other = chance.choice(seeds)
        begin = chance.randrange(len(other) + 1)
        data[place:] = other[begin : begin + 2_000]
    else:
        data[place : place + 1] = bytes([chance.randrange(256)])
