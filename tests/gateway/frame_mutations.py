"""Frames that are nearly right: what drivers send, with a few bytes, fields, types or lengths changed."""

from __future__ import annotations

import copy
import struct
import zlib
from random import Random
from typing import Any

import bson
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

Document = dict[str, Any]
OP_QUERY, OP_COMPRESSED, OP_MSG = 2004, 2012, 2013

SESSION = {"id": Binary(b"0123456789abcdef", 4)}
COMMANDS: tuple[Document, ...] = (
    {"hello": 1, "helloOk": True, "client": {"driver": {"name": "x", "version": "1"}, "os": {"type": "y"}}},
    {"isMaster": 1, "compression": ["zlib"], "speculativeAuthenticate": {"saslStart": 1, "mechanism": "SCRAM-SHA-256"}},
    {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"n,,n=nobody,r=abcdefgh", "options": {}},
    {"saslContinue": 1, "conversationId": 1, "payload": b"c=biws,r=abcdefgh,p=AAAA"},
    {"authenticate": 1, "mechanism": "MONGODB-X509", "user": "CN=client"},
    {"ping": 1, "lsid": SESSION},
    {"buildInfo": 1},
    {"connectionStatus": 1, "showPrivileges": True},
    {"aggregate": "c", "pipeline": [{"$changeStream": {"fullDocument": "updateLookup"}}], "cursor": {"batchSize": 1}},
    {"aggregate": 1, "pipeline": [{"$changeStream": {}}, {"$match": {"a": {"$gt": 1}}}], "cursor": {}, "lsid": SESSION},
    {"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": {"_data": "82"}}}], "cursor": {}},
    {"aggregate": "c", "pipeline": [{"$match": {}}], "cursor": {}},
    {"getMore": Int64(1), "collection": "c", "batchSize": 1, "maxTimeMS": 1},
    {"killCursors": "c", "cursors": [Int64(1), Int64(2)]},
    {"endSessions": [SESSION]},
    {"killSessions": [SESSION]},
    {"killAllSessions": [{"user": "ann", "db": "admin"}]},
    {"killAllSessionsByPattern": [{"lsid": SESSION}]},
    {"find": "c", "filter": {}, "limit": 1},
    {"insert": "c", "documents": [{"_id": 1}], "ordered": True},
    {"configureFailPoint": "failCommand", "mode": {"times": 0}, "data": {"failCommands": ["getMore"]}},
    {"listDatabases": 1},
    {"logout": 1},
)
OF_OTHERS = ("killSessions", "killAllSessions", "killAllSessionsByPattern", "insert")
"""What anybody may do to the server and all its clients where nobody has to log in: end their writes, and make
databases by the thousand."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31 - 1, -(2**31), Int64(2**63 - 1), Int64(-(2**63)), 0.5, float("nan"), -0.0,
    float("inf"),
    "", "x", "\x00", "$db", "admin", "é" * 50, b"", b"\xff" * 16, Binary(b"x", 3), Binary(b"0" * 16, 4), [], [None],
    [[[]]], {}, {"a": {"b": {}}}, {"$gt": 1}, {"_data": "zz"}, ObjectId(b"0" * 12), Regex("(a+)+$"), Timestamp(1, 1),
    Timestamp(2**32 - 1, 2**32 - 1), Decimal128("NaN"), Code("x"), Code("x", {}), MinKey(), MaxKey(),
)  # fmt: skip


def frame(payload: bytes, number: int, opcode: int = OP_MSG) -> bytes:
    return struct.pack("<iiii", 16 + len(payload), number, 0, opcode) + payload


class Mutations:
    """An endless supply, the same for the same seed."""

    def __init__(self, seed: int, *, spares_others: bool = False) -> None:
        """`spares_others` leaves out what is about all others, for a server that allows it."""
        self._random = Random(seed)
        self._commands = [each for each in COMMANDS if not (spares_others and next(iter(each)) in OF_OTHERS)]
        self.cursors: list[int] = []
        """Ids that the gateway has given, to be asked for now and then."""

    def whole(self, number: int) -> bytes:
        """A frame whose length is right: the connection may well survive it."""
        body = self._body()
        style = self._random.random()
        if style < 0.4:
            body = self._struck(body)
        if style < 0.8:
            return frame(b"\x00" * 5 + body, number)
        if style < 0.9:
            return self._packed(b"\x00" * 5 + body, number)
        if style < 0.95:
            name = b"pub.c" if self._random.random() < 0.05 else self._random.choice((b"admin.$cmd", b"pub.$cmd"))
            return frame(b"\x00" * 4 + name + b"\x00" + struct.pack("<ii", 0, -1) + body, number, OP_QUERY)
        if style < 0.995:
            section = b"documents\x00" + body
            return frame(b"\x00" * 5 + body + b"\x01" + struct.pack("<i", 4 + len(section)) + section, number)
        flags = self._random.choice((1, 2, 1 << 16, 4, 0xFFFFFFFF))
        return frame(struct.pack("<I", flags) + b"\x00" + body, number)

    def _packed(self, content: bytes, number: int) -> bytes:
        size, method, packed = len(content), 2, zlib.compress(content)
        if self._random.random() < 0.03:
            size = self._random.choice((0, -1, 10**9, 2**31 - 1, 40_000))
        if self._random.random() < 0.03:
            method = self._random.choice((0, 1, 3, 9))
        return frame(struct.pack("<iiB", OP_MSG, size, method) + packed, number, OP_COMPRESSED)

    def broken(self, number: int) -> bytes:
        """A frame with bytes changed anywhere, or cut short: mostly the end of a connection."""
        made = bytearray(self.whole(number))
        for _ in range(self._random.randint(1, 4)):
            made[self._random.randrange(min(len(made), 40))] = self._random.randrange(256)
        return bytes(made[: self._random.randint(1, len(made))]) if self._random.random() < 0.3 else bytes(made)

    def _body(self) -> bytes:
        command = copy.deepcopy(self._random.choice(self._commands))
        command["$db"] = self._random.choice(("pub", "admin", "secret"))
        if "getMore" in command and self.cursors:
            command["getMore"] = Int64(self._random.choice(self.cursors))
        for _ in range(self._random.choice((0, 1, 1, 2, 3))):
            self._change(command)
        try:
            made = bson.encode(command)
        except Exception:
            return bson.encode({"ping": 1, "$db": "admin"})
        if self._random.random() < 0.05:  # a field that stands twice
            made = struct.pack("<i", 2 * len(made) - 5) + made[4:-1] + made[4:]
        return made

    def _change(self, document: Document) -> None:
        name = self._random.choice(list(document))
        inner = document[name]
        if isinstance(inner, dict) and inner and self._random.random() < 0.5:
            self._change(inner)
            return
        if (
            isinstance(inner, list)
            and inner
            and isinstance(inner[0], dict)
            and inner[0]
            and self._random.random() < 0.6
        ):
            self._change(inner[0])
            return
        value = self._random.choice(VALUES)
        match self._random.randrange(4):
            case 0:
                del document[name]
            case 1:
                document[self._random.choice(("lsid", "x", "cursor", "$db", "maxTimeMS"))] = value
            case _:
                document[name] = value
        if not document:
            document["ping"] = 1

    def _struck(self, body: bytes) -> bytes:
        """Change bytes inside of a body; its own length stays."""
        made = bytearray(body)
        for _ in range(self._random.randint(1, 3)):
            made[self._random.randrange(4, len(made) - 1)] = self._random.randrange(256)
        return bytes(made)
