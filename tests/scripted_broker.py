"""A broker that lets clients in by SASL OAUTHBEARER as a script says, and then tells of one topic. It does no more.

What it proves is that the client sends what a vendor's documentation asks for, not that the vendor's broker takes it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from listening import Listening

_API_VERSIONS, _METADATA, _HANDSHAKE, _AUTHENTICATE = 18, 3, 17, 36
_KNOWN = {_API_VERSIONS: (0, 0), _METADATA: (0, 1), _HANDSHAKE: (1, 1), _AUTHENTICATE: (0, 0)}
_UNSUPPORTED_VERSION, _FAILED = 35, 58
TOPIC = "tailrace.shop.orders"


class ScriptedBroker(Listening):
    """Asks `accepts` about the token of each client."""

    def __init__(self, accepts: Callable[[str], bool]) -> None:
        self._accepts = accepts
        self.tokens: list[str] = []
        super().__init__()

    def _converse(self, client: socket.socket) -> None:
        while head := client.recv(4, socket.MSG_WAITALL):
            body = client.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
            key, version, number = struct.unpack_from(">hhi", body)
            size = struct.unpack_from(">h", body, 8)[0]
            answer = struct.pack(">i", number) + self._answer(key, version, body[10 + max(size, 0) :])
            client.sendall(struct.pack(">i", len(answer)) + answer)

    def _answer(self, key: int, version: int, body: bytes) -> bytes:
        if key == _API_VERSIONS:
            apis = b"".join(struct.pack(">hhh", api, *versions) for api, versions in _KNOWN.items())
            return struct.pack(">hi", _UNSUPPORTED_VERSION if version else 0, len(_KNOWN)) + apis
        if key == _HANDSHAKE:
            return struct.pack(">hi", 0, 1) + _text("OAUTHBEARER")
        if key == _AUTHENTICATE:
            token = body[4:].decode().partition("auth=Bearer ")[2].partition("\x01")[0]
            if not self._accepts(token):
                return struct.pack(">h", _FAILED) + _text("Access denied") + struct.pack(">i", 0)
            self.tokens.append(token)
            return struct.pack(">hhi", 0, -1, 0)
        host, _, port = self.address.rpartition(":")
        partition = struct.pack(">hiiiiii", 0, 0, 1, 1, 1, 1, 1)
        return (
            struct.pack(">ii", 1, 1) + _text(host) + struct.pack(">ih", int(port), -1)
            + struct.pack(">iih", 1, 1, 0) + _text(TOPIC) + struct.pack(">bi", 0, 1) + partition
        )  # fmt: skip


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
