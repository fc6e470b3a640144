"""TLS before a server that was built without it: a proxy on loopback that speaks TLS to clients and plain TCP behind.

For PostgreSQL it answers the request for TLS as the server would; the programs of the stand have no TLS of their own.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tailrace.stand.node import ThrowAwayCA


class TlsStream:
    """TLS on a socket that one thread may read while another writes, which `SSLSocket` does not allow before 3.13."""

    def __init__(
        self, connection: socket.socket, context: ssl.SSLContext, *, server_hostname: str | None = None
    ) -> None:
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        is_server = server_hostname is None
        self._tls = context.wrap_bio(self._incoming, self._outgoing, is_server, server_hostname)
        self._lock = threading.Lock()
        while not self._is_done(self._tls.do_handshake):
            self._receive()

    def recv(self, size: int) -> bytes:
        """Wait for what the other side sends; empty at the end."""
        while True:
            with self._lock:
                try:
                    return self._tls.read(size)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError:  # the other side has closed it
                    return b""
            self._receive()

    def sendall(self, data: bytes) -> None:
        """Send it all."""
        with self._lock:
            self._tls.write(data)
            self._connection.sendall(self._outgoing.read())

    def shutdown(self, how: int) -> None:
        """Break the connection."""
        self._connection.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()

    def _is_done(self, step: Callable[[], None]) -> bool:
        try:
            step()
            done = True
        except ssl.SSLWantReadError:
            done = False
        finally:
            self._connection.sendall(self._outgoing.read())
        return done

    def _receive(self) -> None:
        data = self._connection.recv(65536)
        with self._lock:
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()


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
            with behind, suppress(ssl.SSLError):  # who does not trust the certificate ends the handshake
                inside = TlsStream(client, context)
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


def _pump(source: socket.socket | TlsStream, target: socket.socket | TlsStream) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
