"""As whom the gateway presents itself in a handshake: a router, or the only member of the upstream's replica set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from bson import Timestamp

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
_USUAL: Final = frozenset(
    {b"hello", b"isMaster", b"ismaster", b"helloOk", b"client", b"compression", b"$db", b"$clusterTime"}
)
"""What drivers say in a handshake that everybody gets the same answer to."""
_ANYBODY: Final = {"driver": {"name": "", "version": ""}, "os": {"type": ""}}
_NO_TIME: Final = {"clusterTime": Timestamp(0, 0)}
_LONGEST_NAME: Final = 128
"""Bytes of an application's name."""


class Presentation(StrEnum):
    """As whom the gateway speaks to drivers."""

    MONGOS = "mongos"
    REPLICA_SET = "replica-set"

    def hello(self, reply: bytes, command: str, address: str, compressors: Sequence[str]) -> bytes:
        """Give the upstream's answer to a handshake as the gateway's own.

        `address` is where the client finds the gateway; a driver connects to the hosts in the reply.
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


def is_usual_hello(greeting: bytes, asked: Mapping[str, Any]) -> bool:
    """Return whether a client presents itself as drivers do; all other handshakes are left to the upstream.

    `greeting` is what would be passed on.
    """
    names = {name for _, name, _, _ in raw.elements(greeting)}
    gossip = asked.get("$clusterTime", _NO_TIME)
    return (
        names <= _USUAL
        and _is_metadata(asked.get("client", _ANYBODY))
        and are_names(asked.get("compression", []))
        and isinstance(gossip, Mapping)
        and isinstance(gossip.get("clusterTime"), Timestamp)
    )


def _is_metadata(client: Any) -> bool:
    """Return whether a server takes what a client says of itself."""
    if not isinstance(client, Mapping) or not all(isinstance(part, Mapping | str) for part in client.values()):
        return False
    parts = (client.get(name) for name in ("driver", "os", "application"))
    driver, system, application = (part if isinstance(part, Mapping) else {} for part in parts)
    name = application.get("name", "")
    known = (driver.get("name"), driver.get("version"), system.get("type"), name)
    return all(type(each) is str for each in known) and len(name.encode()) <= _LONGEST_NAME


def is_awaitable(asked: Mapping[str, Any]) -> bool:
    """Return whether a client waits for the next change of the topology, as drivers do; it is answered at once."""
    return isinstance(asked.get("topologyVersion"), Mapping) and _is_time(asked.get("maxAwaitTimeMS"))


def _is_time(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def are_names(value: Any) -> bool:
    """Return whether it is a list of strings; code, which is a string in Python, is none."""
    return isinstance(value, list) and all(type(name) is str for name in value)
