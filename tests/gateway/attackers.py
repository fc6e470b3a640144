"""Clients that send mutated frames as fast as they are answered.

As a program it plays eight of them, half of which log in, until its input ends: `attackers.py PORT SEED [open]`. It
then prints what became of the frames, as JSON. `open` is where nobody has to log in.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
from contextlib import suppress
from typing import Final

import bson

from gateway.frame_mutations import OP_MSG, Mutations, frame
from gateway.wire_client import WireClient
from tailrace import raw
from waiting import SECONDS

USERS: Final = (None, "ann") * 4
BURST: Final = 40
SECONDS_TO_ANSWER: Final = 1.0
"""Some frames ask to wait for weeks, and may."""
SENTINEL: Final = 0x5EED
PING: Final = frame(b"\x00" * 5 + bson.encode({"ping": 1, "$db": "admin"}), SENTINEL)


class Attacker(threading.Thread):
    """Sends bursts of mutated frames, and reads until the ping behind each is answered or the other side hangs up."""

    def __init__(self, port: int, seed: int, user: str | None, *, is_open: bool = False) -> None:
        super().__init__(daemon=True)
        self.is_done = threading.Event()
        self._port = port
        self._user = user
        self._mutations = Mutations(seed, spares_others=is_open)
        self._client: WireClient | None = None
        self.bursts = self.answered = self.hung_up = self.stuck = 0
        self.died = 1

    def run(self) -> None:
        try:
            while not self.is_done.is_set():
                self._burst()
            self.died = 0
        finally:
            self._hang_up()

    def _burst(self) -> None:
        """Every fourth burst ends with a frame that is broken."""
        sent = [self._mutations.whole(number) for number in range(1, BURST)]
        self.bursts += 1
        if self.bursts % 4 == 0:
            sent.append(self._mutations.broken(BURST))
        try:
            self._exchange(self._connected(), b"".join(sent) + PING)
        except TimeoutError:
            self.stuck += 1
            self._hang_up()
        except (ConnectionError, OSError):
            self.hung_up += 1
            self._hang_up()

    def _exchange(self, client: WireClient, data: bytes) -> None:
        sender = threading.Thread(target=_send, args=(client.socket, data), daemon=True)
        sender.start()
        try:
            while self._read_reply(client) != SENTINEL:
                self.answered += 1
        except OSError:
            self._hang_up()
            raise
        finally:
            sender.join()

    def _connected(self) -> WireClient:
        if self._client is None:
            self._client = WireClient(self._port)
            self._client.socket.settimeout(SECONDS)
            if self._user is not None:
                self._client.authenticate(self._user, "secret")
            self._client.socket.settimeout(SECONDS_TO_ANSWER)
        return self._client

    def _read_reply(self, client: WireClient) -> int:
        head = client.exactly(16)
        length, _, response_to, opcode = struct.unpack("<iiii", head)
        payload = client.exactly(length - 16)
        if opcode == OP_MSG and b"cursor\x00" in payload[:40]:
            self._note_cursor(payload[5:])
        return int(response_to)

    def _note_cursor(self, reply: bytes) -> None:
        """Not decoded: others have written documents that no driver can read."""
        cursor = raw.field(reply, b"cursor")
        found = raw.field(cursor.data, b"id") if cursor is not None and cursor.kind == raw.DOCUMENT else None
        number = None if found is None else raw.to_python(*found)
        if isinstance(number, int) and number:
            self._mutations.cursors = [*self._mutations.cursors[-20:], number]

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.socket.close()
            self._client = None


def _send(peer: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        peer.sendall(data)


def totals(attackers: list[Attacker]) -> dict[str, int]:
    """What became of the frames of all of them."""
    return {name: sum(getattr(each, name) for each in attackers) for name in ("answered", "hung_up", "stuck", "died")}


def _main(port: int, seed: int, is_open: bool) -> None:
    os.nice(10)
    attackers = [Attacker(port, seed * 1_000 + number, user, is_open=is_open) for number, user in enumerate(USERS)]
    for attacker in attackers:
        attacker.start()
    print("attacking", flush=True)
    sys.stdin.read()
    for attacker in attackers:
        attacker.is_done.set()
    for attacker in attackers:
        attacker.join(SECONDS)
    print(json.dumps(totals(attackers) | {"alive": sum(each.is_alive() for each in attackers)}), flush=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), "open" in sys.argv[3:])
