"""A server that answers over the real wire protocol as a script says: for servers that cannot be had here.

What it proves is that tailrace does what a vendor's documentation asks for, not that the vendor's server does what its
documentation says.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

import bson
from bson.timestamp import Timestamp

from listening import Listening

_HEADER = struct.Struct("<iiii")
_OP_MSG, _OP_QUERY, _OP_REPLY = 2013, 2004, 1
Command = dict[str, Any]
Handler = Callable[[Command], Mapping[str, Any] | None]


class Refusal(Exception):
    """What the server refuses a command with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.reply = {"ok": 0.0, "code": code, "errmsg": message}


class ScriptedServer(Listening):
    """Answers `hello`, `ping` and the like by itself, and everything else by its handler."""

    def __init__(self, handler: Handler, hello: Mapping[str, Any], build: Mapping[str, Any]) -> None:
        self._handler, self._hello, self._build = handler, hello, build
        self.commands: list[Command] = []
        """All that the handler was asked."""
        self.operation_time = Timestamp(1_700_000_000, 1)
        super().__init__()

    def _converse(self, client: socket.socket) -> None:
        while (head := _receive(client, 16)) is not None:
            length, request, _, opcode = _HEADER.unpack(head)
            body = _receive(client, length - 16) or b""
            start = 5 if opcode == _OP_MSG else body.index(b"\0", 4) + 9
            size = struct.unpack_from("<i", body, start)[0]
            answer = self._answer(bson.decode(body[start : start + size]))
            reply = bson.encode({**answer, "operationTime": self.operation_time})
            if opcode == _OP_MSG:
                payload = struct.pack("<iB", 0, 0) + reply
            else:
                payload = struct.pack("<iqii", 8, 0, 0, 1) + reply
            code = _OP_MSG if opcode == _OP_MSG else _OP_REPLY
            client.sendall(_HEADER.pack(16 + len(payload), 0, request, code) + payload)

    def _answer(self, command: Command) -> dict[str, Any]:
        name = next(iter(command))
        if name.lower() in ("hello", "ismaster"):
            return {**self._hello, "ok": 1.0}
        if name.lower() == "buildinfo":
            return {**self._build, "ok": 1.0}
        if name in ("ping", "endSessions", "killCursors"):
            return {"ok": 1.0}
        self.commands.append(command)
        try:
            return {**(self._handler(command) or {}), "ok": 1.0}
        except Refusal as refusal:
            return refusal.reply
        except Exception as error:  # a client that is not answered would wait for ever
            return Refusal(8, f"the script failed at {name}: {error!r}").reply


def _receive(client: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        part = client.recv(count - len(data))
        if not part:
            return None
        data += part
    return data
