"""Which shards a cluster has, and how a shard that is idle is brought up to the others.

An idle shard writes nothing, so its oplog does not say that time has passed. That cannot be asked for either: a time
that a node has only received lives in its memory. Seen on 6.0.5: a node that knew of a time, was killed and restarted
began again at the time of its last entry, and wrote smaller ones than it had received. So the shard is made to write:

1. The primary is sent the newest cluster time and writes a note (`appendOplogNote`, 80 bytes), whose time is later.
   It is asked to have it on a majority: nobody sees an entry before it is in the journal, and a write that does not
   ask for that gets there up to 100 ms later (seen on 4.2.6 and 6.0.5: 86 ms against 1.5 ms).
2. The tail reads the note with read concern "majority". What a majority has is never rolled back, whoever is elected
   and whatever is restarted, and nothing is ever written before it: an oplog only grows at its end. So all that the
   shard wrote before the note has been read, and all that it will write comes behind it.

The server does the same for reads with `afterClusterTime` on a shard that is behind (`makeNoopWriteIfNeeded`), and
such a read is what a user without the privilege `appendOplogNote` sends instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure, PyMongoError, WTimeoutError
from pymongo.read_concern import ReadConcern

from tailrace import server_codes
from tailrace.errors import ServerUnreachable
from tailrace.logs import get_logger
from tailrace.oplog.tail import LiveOplog
from tailrace.raw.cluster_time import ClusterTime

Document = Mapping[str, Any]

CONFIG: Final = "config"
"""The name under which the config servers take part in a merge: their oplog has which shards come and go."""
_NOTE: Final = {"tailrace": "idle"}
_GRANT: Final = "Grant the action appendOplogNote on the cluster; idle shards are asked in a slower way until then."
_MAJORITY: Final = {"w": "majority", "wtimeout": 1_000}
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
    answer = client.admin.command("isMaster")
    if "configsvr" in answer:
        return uri
    if answer.get("msg") != "isdbgrid":
        return None
    hosts = client.admin.command("getShardMap")["map"]["config"]
    return Shard(CONFIG, hosts).uri(uri)


class ShardClock:
    """Sends one shard the cluster time, and has it write an entry behind it."""

    def __init__(self, uri: str) -> None:
        self._client: MongoClient[Any] = MongoClient(uri, **_TIMEOUTS)
        self._may_write = True

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def now(self, cluster_time: Document | None = None) -> Document:
        """Give the `$clusterTime` of the shard, signed as its servers sign it; another may be sent to it first.

        What is written to the shard from then on is later than the time it was sent.
        """
        with _session_at(self._client, cluster_time) as session:
            self._client.admin.command("ping", session=session)
            return dict(session.cluster_time or {})

    def shards(self) -> list[Shard]:
        """List the shards, when this is the clock of the config servers."""
        return _shards(self._client)

    def write_note(self, cluster_time: Document, until: int, *, in_any_case: bool = False) -> bool:
        """Have the shard write an entry behind a cluster time, and give whether it did.

        It does not when it has an entry behind `until`, unless told to: a majority has that entry only when somebody
        sees to it, as a write does that asks for a majority.
        """
        with _session_at(self._client, cluster_time) as session:
            try:
                if self._may_write:
                    note = {"appendOplogNote": 1, "data": _NOTE, "writeConcern": _MAJORITY}
                    limit = {} if in_any_case else {"maxClusterTime": ClusterTime(until).timestamp}
                    reply = self._client.admin.command(note | limit, session=session)
                    if "writeConcernError" in reply:
                        raise WTimeoutError("no majority has the note")
                    return True
            except OperationFailure as error:
                if error.code == server_codes.STALE_CLUSTER_TIME:
                    return False
                if error.code != server_codes.UNAUTHORIZED:
                    raise
                self._may_write = False
                get_logger().warning("note_not_allowed", hint=_GRANT, hosts=self._client.nodes)
            read = LiveOplog(self._client).query(until, after=until)
            self._client.local.command({**read, "limit": 1, "singleBatch": True}, session=session)
            return True


@contextmanager
def _session_at(client: MongoClient[Any], cluster_time: Document | None) -> Iterator[ClientSession]:
    """Make a session that carries a cluster time to the server it speaks to."""
    with client.start_session(causal_consistency=False) as session:
        if cluster_time:
            session.advance_cluster_time(cluster_time)
        yield session


def time_of(cluster_time: Document) -> int:
    """Give the time inside a `$clusterTime`."""
    return ClusterTime.from_timestamp(cluster_time["clusterTime"])
