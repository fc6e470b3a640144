"""A process that connects many clients, greets, and then does nothing: `idle_clients.py PORT COUNT`."""

from __future__ import annotations

import resource
import socket
import struct
import sys
import threading

import bson


def main(port: int, count: int) -> None:
    """Connect, print `ready`, and stay until killed."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    hello = bson.encode({"hello": 1, "$db": "admin"})
    frame = struct.pack("<iiiiIB", 21 + len(hello), 1, 0, 2013, 0, 0) + hello
    peers = []
    for _ in range(count):
        peer = socket.create_connection(("127.0.0.1", port), timeout=60)
        peer.sendall(frame)
        assert peer.recv(4)
        peers.append(peer)
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
