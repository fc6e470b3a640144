"""TLS before a server that was built without it: a proxy on loopback that speaks TLS to clients and plain TCP behind.

For PostgreSQL it answers the request for TLS as the server would; the programs of the stand have no TLS of their own.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tailrace.stand.node import ThrowAwayCA

_SSL_REQUEST = (8).to_bytes(4) + (80877103).to_bytes(4)


@contextmanager
def tls_front(port: int, certificates: ThrowAwayCA, *, postgresql: bool = False) -> Iterator[int]:
    """Give the port of the proxy before `port`; clients that do not want TLS are hung up on."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.certificate_key_file)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with suppress(OSError), client:
            if postgresql:
                if client.recv(8, socket.MSG_WAITALL) != _SSL_REQUEST:
                    return
                client.sendall(b"S")
            behind = socket.create_connection(("127.0.0.1", port))
            with behind, context.wrap_socket(client, server_side=True) as inside:
                threading.Thread(target=_pump, args=(behind, inside), daemon=True).start()
                _pump(inside, behind)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
