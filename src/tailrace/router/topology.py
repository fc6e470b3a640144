"""Which shards a cluster has, and how far a shard that is idle has come.

An idle shard writes nothing, so its oplog does not say that time has passed. It is asked instead, without a write:

1. The newest cluster time is told to its members. A node that knows a time gives later ones to all it writes, and so
   does whoever is elected by members that know it: once a majority knows it, nothing below it can begin any more.
2. That majority names the same primary, so no other one can be writing unseen.
3. The primary is asked for the first entry behind what was read, by a query that waits for writes under way. When
   there is none, nothing below the time of step 1 will come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from tailrace.engine.stream import to_int, to_timestamp
from tailrace.errors import ServerUnreachable

Document = Mapping[str, Any]

CONFIG: Final = "config"
"""The name under which the config servers take part in a merge: their oplog tells which shards come and go."""
_TIMEOUTS: Final[dict[str, Any]] = {
    "serverSelectionTimeoutMS": 2_000,
    "connectTimeoutMS": 2_000,
    "socketTimeoutMS": 5_000,
}


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard by its name, and where it is: `s0/host:port,host:port`."""

    name: str
    host: str

    @classmethod
    def of(cls, document: Document) -> Shard:
        """Read a document of `config.shards`."""
        return cls(document["_id"], document["host"])

    def uri(self, like: str) -> str:
        """Give its URI, with the user and options of the URI of another part of the cluster."""
        name, _, hosts = self.host.rpartition("/")
        scheme, rest = like.split("://", 1)
        address, _, options = rest.partition("?")
        user = address.rpartition("@")[0]
        kept = [each for each in options.split("&") if each and not each.lower().startswith(_OF_ONE_PART)]
        named = [f"replicaSet={name}"] if name else []
        prefix = f"{user}@" if user else ""
        return f"{scheme.removesuffix('+srv')}://{prefix}{hosts}/?{'&'.join([*named, *kept])}"


_OF_ONE_PART: Final = ("replicaset=", "directconnection=", "loadbalanced=")


def read_shards(client: MongoClient[Any]) -> list[Shard]:
    """List the shards, from a config server or a mongos; none for a replica set that is no cluster."""
    try:
        return _shards(client)
    except PyMongoError as error:
        raise ServerUnreachable(f"the shards cannot be listed: {error}") from error


def _shards(client: MongoClient[Any]) -> list[Shard]:
    listed = client.config.get_collection("shards", read_concern=ReadConcern("majority"))
    return [Shard.of(document) for document in listed.find().sort("_id")]


def config_uri(client: MongoClient[Any], uri: str) -> str | None:
    """Give the URI of the config servers, when the client speaks to one or to a mongos; None for a replica set."""
    said = client.admin.command("isMaster")
    if "configsvr" in said:
        return uri
    if said.get("msg") != "isdbgrid":
        return None
    hosts = client.admin.command("getShardMap")["map"]["config"]
    return Shard(CONFIG, hosts).uri(uri)


class ShardClock:
    """Asks the members of one shard how far it has come."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._members: dict[tuple[str, int | None], MongoClient[Any]] = {}
        self._client: MongoClient[Any] = MongoClient(uri, **_TIMEOUTS)

    def close(self) -> None:
        """Hang up."""
        for member in self._members.values():
            member.close()
        self._client.close()

    def now(self, told: Document | None = None) -> Document:
        """Give the `$clusterTime` of the shard, signed as its servers sign it; it may be told another first.

        What is written to the shard from then on is later than the time it was told.
        """
        with _telling(self._client, told) as session:
            self._client.admin.command("ping", session=session)
            return dict(session.cluster_time or {})

    def shards(self) -> list[Shard]:
        """List the shards, when this is the clock of the config servers."""
        return _shards(self._client)

    def nothing_until(self, cluster_time: Document, reached: int) -> bool:
        """Tell whether nothing behind `reached` and up to a cluster time was or will be written."""
        primary = self._agreed_primary(cluster_time)
        return primary is not None and not self._has_entry_behind(primary, reached)

    def _agreed_primary(self, cluster_time: Document) -> MongoClient[Any] | None:
        """Tell all members the time; give the primary that a majority of them names, if there is one."""
        named: dict[str, int] = {}
        if not self._client.nodes:
            self._client.admin.command("ping")  # the first command finds the members
        addresses = self._client.nodes
        hosts = {f"{host}:{port}": (host, port) for host, port in addresses}
        for address in addresses:
            try:
                named_by = self._hello(address, cluster_time).get("primary")
            except PyMongoError:
                continue
            if named_by is not None:
                named[named_by] = named.get(named_by, 0) + 1
        for name, votes in named.items():
            if votes * 2 > len(addresses) and name in hosts:
                return self._member(hosts[name])
        return None

    def _hello(self, address: tuple[str, int | None], cluster_time: Document) -> Document:
        member = self._member(address)
        with _telling(member, cluster_time) as session:
            return member.admin.command("isMaster", session=session)

    def _has_entry_behind(self, primary: MongoClient[Any], reached: int) -> bool:
        # A forward query that is not tailable waits until all writes before it can be seen.
        query = {"ts": {"$gt": to_timestamp(reached)}}
        oplog = primary.local["oplog.rs"]
        return next(oplog.find(query, {"_id": 0, "ts": 1}, batch_size=1, limit=1), None) is not None

    def _member(self, address: tuple[str, int | None]) -> MongoClient[Any]:
        known = self._members.get(address)
        if known is None:
            host = f"{address[0]}:{address[1]}"
            uri = Shard("", host).uri(self._uri)
            known = self._members[address] = MongoClient(uri, directConnection=True, **_TIMEOUTS)
        return known


@contextmanager
def _telling(client: MongoClient[Any], cluster_time: Document | None) -> Iterator[ClientSession]:
    """Make a session that carries a cluster time to the server it speaks to."""
    with client.start_session(causal_consistency=False) as session:
        if cluster_time:
            session.advance_cluster_time(cluster_time)
        yield session


def time_of(cluster_time: Document) -> int:
    """Give the time inside a `$clusterTime`."""
    return to_int(cluster_time["clusterTime"])
