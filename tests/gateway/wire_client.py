"""A client that sends whatever bytes it likes: what no driver would, and an attacker does."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
import zlib
from typing import Any

import bson

from tailrace import raw

OP_QUERY, OP_MSG = 2004, 2013


def element(name: str, value: Any) -> bytes:
    """One field of a command; the same name may be given again and again."""
    made = raw.from_python(value)
    return raw.element(made.kind, name.encode(), made.data)


class WireClient:
    """One connection, for frames made by hand."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None, source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120, source_address=(source, 0))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_frame(self, payload: bytes, opcode: int = OP_MSG) -> None:
        self.socket.sendall(struct.pack("<iiii", 16 + len(payload), 1, 0, opcode) + payload)

    def fields(self, *elements: bytes) -> dict[str, Any]:
        """Send a command of these elements, and give the reply without its times."""
        self.send_frame(b"\x00" * 5 + raw.document(*elements))
        return self.reply()

    def send(self, document: dict[str, Any]) -> None:
        """Send a command whose reply is read later."""
        self.send_frame(b"\x00" * 5 + bson.encode(document))

    def command(self, document: dict[str, Any]) -> dict[str, Any]:
        return self.fields(raw.body(bson.encode(document)))

    def query(self, namespace: str, document: dict[str, Any]) -> dict[str, Any]:
        """Send a legacy query."""
        head = struct.pack("<i", 0) + namespace.encode() + b"\x00" + struct.pack("<ii", 0, -1)
        self.send_frame(head + bson.encode(document), OP_QUERY)
        return self.reply()

    def reply(self) -> dict[str, Any]:
        length, _, _, opcode = struct.unpack("<iiii", self.exactly(16))
        payload = self.exactly(length - 16)
        found: dict[str, Any] = bson.decode(payload[5 if opcode == OP_MSG else 20 :])
        return {name: value for name, value in found.items() if name not in ("$clusterTime", "operationTime")}

    def packed_reply(self) -> dict[str, Any]:
        """Read a reply that came compressed with zlib."""
        length = struct.unpack("<iiii", self.exactly(16))[0]
        return dict(bson.decode(zlib.decompress(self.exactly(length - 16)[9:])[5:]))

    def exactly(self, count: int) -> bytes:
        got = bytearray(count)
        left = memoryview(got)
        while left:
            received = self.socket.recv_into(left)
            if not received:
                raise ConnectionResetError("the other side hung up")
            left = left[received:]
        return bytes(got)

    def authenticate(self, user: str, password: str, database: str = "admin") -> None:
        """Speak SCRAM-SHA-256."""
        more = self.begin_login(user, password, database)
        while not (told := self.command(more)).get("done"):
            assert told["ok"] == 1, told
            more["payload"] = b""

    def begin_login(
        self, user: str, password: str, database: str = "admin", *, in_base64: bool = False, **start: Any
    ) -> dict[str, Any]:
        """Begin to speak SCRAM-SHA-256; give the command with the proof that the password is known."""
        first = f"n={user},r={base64.b64encode(secrets.token_bytes(24)).decode()}"
        payload: Any = f"n,,{first}".encode()
        if in_base64:
            payload = base64.b64encode(payload).decode()
        begin = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload, **start, "$db": database}
        told = self.command(begin)
        assert told["ok"] == 1, told
        answer = told["payload"]
        server = (base64.b64decode(answer) if in_base64 else answer).decode()
        parts = dict(part.split("=", 1) for part in server.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        last = f"c=biws,r={parts['r']}"
        signature = hmac.digest(hashlib.sha256(key).digest(), f"{first},{server},{last}".encode(), "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        answer = f"{last},p={proof}".encode()
        return {"saslContinue": 1, "conversationId": told["conversationId"], "payload": answer, "$db": database}
