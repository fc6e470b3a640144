"""A server that gives another version than its own, over the real wire protocol: a proxy that changes a few bytes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from listening import Listening


class HidingProxy(Listening):
    """Forwards to a loopback port; what the server says of its version is replaced by as many other letters."""

    def __init__(self, port: int, version: str, made_up: str) -> None:
        assert len(version) == len(made_up)
        self._target = port
        self._shown = version.encode() + b"\0", made_up.encode() + b"\0"
        super().__init__()

    def cut(self) -> None:
        """Break all connections that are open now."""
        opened, self._open = self._open, []
        for each in opened:
            with suppress(OSError):  # it may be closed already
                each.shutdown(socket.SHUT_RDWR)

    def _converse(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # the server is down
            client.close()
            return
        self._open.append(server)
        threading.Thread(target=self._forward, args=(client, server, None), daemon=True).start()
        self._forward(server, client, self._shown)

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket, replaced: tuple[bytes, bytes] | None) -> None:
        try:
            while data := source.recv(1 << 20):
                target.sendall(data if replaced is None else data.replace(*replaced))
        except OSError:
            pass
        finally:
            for each in (source, target):
                each.close()
