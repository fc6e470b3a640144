"""As whom the gateway presents itself in a handshake: a router, or the only member of the upstream's replica set."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from tailrace import raw

_OF_A_MEMBER: Final = (
    b"setName", b"setVersion", b"hosts", b"passives", b"arbiters", b"primary", b"secondary", b"me", b"electionId",
    b"lastWrite", b"topologyVersion", b"compression", b"tags", b"isreplicaset", b"arbiterOnly", b"passive", b"hidden",
    b"secondaryDelaySecs", b"slaveDelay", b"ismaster", b"isWritablePrimary",
)  # fmt: skip
"""What a member of a replica set says of itself, and a router does not."""
_OF_THE_UPSTREAM_ALONE: Final = (
    b"hosts", b"passives", b"arbiters", b"primary", b"secondary", b"me", b"topologyVersion", b"compression", b"tags",
    b"arbiterOnly", b"passive", b"hidden", b"secondaryDelaySecs", b"slaveDelay", b"ismaster", b"isWritablePrimary",
)  # fmt: skip
"""What is true of the upstream's members, and not of the gateway. Without `topologyVersion` drivers ask now and then
how the gateway is, instead of waiting for it to say."""


class Presentation(StrEnum):
    """As whom the gateway speaks to drivers."""

    MONGOS = "mongos"
    REPLICA_SET = "replica-set"

    def hello(self, reply: bytes, command: str, address: str, compressors: Sequence[str]) -> bytes:
        """Give the upstream's answer to a handshake as the gateway's own.

        `address` is where the client finds the gateway; a driver connects to the hosts that it is told of.
        """
        writable = b"isWritablePrimary" if command == "hello" else b"ismaster"
        added = [raw.element(raw.BOOL, writable, raw.boolean(True))]
        if self is Presentation.MONGOS:
            base = raw.without(reply, *_OF_A_MEMBER)
            added.append(raw.element(raw.STRING, b"msg", raw.string("isdbgrid")))
        else:
            base = raw.without(reply, *_OF_THE_UPSTREAM_ALONE)
            host = raw.string(address)
            added += [
                raw.element(raw.ARRAY, b"hosts", raw.array([raw.Value(raw.STRING, host)])),
                raw.element(raw.BOOL, b"secondary", raw.boolean(False)),
                raw.element(raw.STRING, b"primary", host),
                raw.element(raw.STRING, b"me", host),
            ]
        if compressors:
            added.append(raw.element(raw.ARRAY, b"compression", raw.from_python(list(compressors)).data))
        return raw.append(base, *added)


def host_and_port(address: object) -> str:
    """Write a socket's address as MongoDB does."""
    if not isinstance(address, tuple):
        return str(address)
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
