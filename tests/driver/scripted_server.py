"""A server on loopback that says what a test scripts: for versions and vendors that no registry has."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import bson

Answer = dict[str, Any] | None
"""A reply document; None means: close the connection instead."""
HEADER = struct.Struct("<iiii")
OP_MSG, OP_QUERY, OP_REPLY = 2013, 2004, 1


class ScriptedServer:
    """Speaks OP_MSG; `answer(command)` gives each reply but those of the handshake and killCursors."""

    def __init__(self, answer: Callable[[dict[str, Any]], Answer], *, wire_version: int) -> None:
        self._answer = answer
        self._wire_version = wire_version
        self.commands: list[dict[str, Any]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.uri = f"mongodb://127.0.0.1:{self._listener.getsockname()[1]}/?directConnection=true"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def of(self, name: str) -> list[dict[str, Any]]:
        """The commands of one name, in order."""
        return [command for command in self.commands if name in command]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while True:
                size, request, _, code = HEADER.unpack(_read(connection, HEADER.size))
                body = _read(connection, size - HEADER.size)
                start = 5 if code == OP_MSG else body.index(0, 4) + 9
                reply = self._reply_to(bson.decode(body[start : start + struct.unpack_from("<i", body, start)[0]]))
                if reply is None:
                    connection.close()
                    return
                encoded = bson.encode(reply)
                prefix = bytes(5) if code == OP_MSG else struct.pack("<iqii", 8, 0, 0, 1)
                size = HEADER.size + len(prefix) + len(encoded)
                op = OP_MSG if code == OP_MSG else OP_REPLY
                connection.sendall(HEADER.pack(size, 1, request, op) + prefix + encoded)
        except OSError:
            return

    def _reply_to(self, command: dict[str, Any]) -> Answer:
        name = next(iter(command))
        if name.lower() in ("hello", "ismaster"):
            return {"ok": 1, "ismaster": True, "helloOk": True, "maxWireVersion": self._wire_version,
                    "minWireVersion": 0, "maxBsonObjectSize": 16 << 20, "setName": "rs", "secondary": False,
                    "hosts": [], "me": "127.0.0.1:1"}  # fmt: skip
        self.commands.append(command)
        return {"ok": 1} if name in ("killCursors", "endSessions") else self._answer(command)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise OSError("closed")
        data += part
    return data
