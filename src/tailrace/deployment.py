"""What kind of MongoDB deployment answers, and whether it can do what is asked of it: one check, at connection.

The classic first mistakes are caught here, before a verb does anything: a standalone `mongod`, a replica set that
nobody initiated, a set without a primary, a mongos where the oplog of a shard is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from tailrace import server_codes
from tailrace.errors import DeploymentUnsuitable, NotInitiated, NotReplicaSet, OplogUnreadable

_AS_ONE = """Change streams and the oplog need a replica set; one member is enough:
  1. stop mongod, and start it with `--replSet rs0` (in mongod.conf: replication.replSetName: rs0)
  2. mongosh --eval 'rs.initiate()'
  3. connect with mongodb://HOST:PORT/?replicaSet=rs0"""


class Kind(StrEnum):
    """What answers at a URI."""

    REPLICA_SET = "replica set"
    MONGOS = "mongos"
    CONFIG_SERVERS = "config servers"
    STANDALONE = "standalone mongod"
    NOT_INITIATED = "replica set that is not initiated"


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the server says of itself."""

    kind: Kind
    version: str
    replica_set: str | None
    is_secondary: bool
    """Whether the member that answers is a secondary, which a direct connection can be made to."""

    @classmethod
    def of(cls, client: MongoClient[Any]) -> Deployment:
        """Ask the server; a client that cannot reach one raises what pymongo raises."""
        answer = client.admin.command("isMaster")
        name = answer.get("setName")
        return cls(_kind_of(answer), client.server_info()["version"], name, bool(answer.get("secondary")))

    def require_change_streams(self, at: str) -> None:
        """Raise the error that says how to get there, when this deployment has no change streams."""
        if self.kind is Kind.STANDALONE:
            raise NotReplicaSet(f"the mongod at {at} is not a member of a replica set", hint=_AS_ONE)
        if self.kind is Kind.NOT_INITIATED:
            raise NotInitiated(f"the replica set at {at} is not initiated")

    def require_oplog(self, client: MongoClient[Any], at: str) -> None:
        """Raise, when there is no oplog behind the URI that the user may read; a cluster's are behind its shards."""
        self.require_change_streams(at)
        if self.kind is Kind.REPLICA_SET and self.is_secondary:
            raise DeploymentUnsuitable(
                f"{at} is a direct connection to a secondary, and the oplog is read from the primary",
                hint=f"Name the set instead of the member: mongodb://HOST:PORT/?replicaSet={self.replica_set}",
            )
        if self.kind is Kind.REPLICA_SET:
            _read_oplog(client)


def missing_namespaces(client: MongoClient[Any], names: Sequence[str]) -> list[str]:
    """List the databases and collections among these that do not exist: a misspelt one only ever gives silence.

    Patterns are left out, and whatever cannot be listed: this only warns, and nothing may fail by it. Config servers do
    not know the collections of their shards.
    """
    if not names or Deployment.of(client).kind is Kind.CONFIG_SERVERS:
        return []
    known: dict[str, set[str]] = {}
    missing: list[str] = []
    for name in names:
        database, _, collection = name.partition(".")
        if name.startswith("/") or not database:
            continue
        if database not in known:
            try:
                known[database] = set(client[database].list_collection_names(authorizedCollections=True))
            except PyMongoError:
                return missing
        if collection not in known[database] if collection else not known[database]:
            missing.append(name)
    return missing


def _read_oplog(client: MongoClient[Any]) -> None:
    """Ask for one entry, which a user without the privilege is refused."""
    try:
        client["local"]["oplog.rs"].find_one({}, {"_id": 1})
    except OperationFailure as error:
        if error.code != server_codes.UNAUTHORIZED:
            raise
        raise OplogUnreadable("the user of mongodb.uri may not read the oplog, local.oplog.rs") from None


def _kind_of(answer: dict[str, Any]) -> Kind:
    if answer.get("msg") == "isdbgrid":
        return Kind.MONGOS
    if "configsvr" in answer:
        return Kind.CONFIG_SERVERS
    if answer.get("setName"):
        return Kind.REPLICA_SET
    return Kind.NOT_INITIATED if answer.get("isreplicaset") else Kind.STANDALONE
