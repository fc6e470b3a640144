"""Reads the oplogs of a replica set, or of every shard of a cluster. Needs the role `read` on the database `local`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import ConfigurationError, InvalidURI, OperationFailure, PyMongoError
from pymongo.read_preferences import Nearest

from tailrace import server_codes
from tailrace.deployment import Deployment
from tailrace.errors import OplogUnreadable, ServerUnreachable, SettingsError
from tailrace.families import Family, family_of
from tailrace.masking import masked, shown_failure
from tailrace.monitor.window import Oplog

Document = dict[str, Any]

_URI = re.compile(r"(?P<scheme>mongodb(?:\+srv)?)://(?P<user>[^@/]*@)?[^/?]*(?P<path>/[^?]*)?(?:\?(?P<options>.*))?")
_OF_THE_ROUTER_ALONE = {"replicaset", "directconnection", "loadbalanced", "srvservicename", "srvmaxhosts"}


class _At(Nearest):
    """Reads from one member, near or far."""

    def __init__(self, address: tuple[str, int | None]) -> None:
        super().__init__()
        self._address = address

    @property
    def name_of_member(self) -> str:
        """The member as `host:port`."""
        host, port = self._address
        return f"{host}:{port}"

    def __call__(self, selection: Any) -> Any:
        """Choose the member among those that are known."""
        chosen = [server for server in selection.server_descriptions if server.address == self._address]
        return selection.with_server_descriptions(chosen)


class ShardReader:
    """Reads the oplogs of one replica set.

    A stream reads from a member that the read preference of its URI allows; of those the one with the shortest history
    counts. The others are read along, because a stream goes on with one of them after a failover.
    """

    def __init__(self, client: MongoClient[Document], shard: str | None = None) -> None:
        self._client = client
        self._shard = shard

    @property
    def shard(self) -> str:
        """The shard's name: the given one, or else the name of the replica set."""
        if self._shard is None:
            with _readable():
                self._shard = str(self._client.admin.command("isMaster").get("setName", "standalone"))
        return self._shard

    def read(self) -> Oplog:
        """Take one reading: two entries and one statistics call of each member, however large the log is."""
        with _readable():
            chosen, others = self._members()
            oplogs = [self._read_member(address) for address in chosen]
        shortest = max(oplogs, key=lambda oplog: oplog.first)
        rest = [oplog for oplog in oplogs if oplog is not shortest]
        return replace(shortest, others=(*rest, *self._read_those_that_answer(others)))

    def _members(self) -> tuple[list[_At], list[_At]]:
        """Give the members that the read preference chooses, and the others that could be read."""
        self._client.admin.command("ping", read_preference=self._client.read_preference)  # finds the members first
        known = self._client.topology_description
        chosen = [server.address for server in known.apply_selector(self._client.read_preference)]
        others = [
            address for address, server in known.server_descriptions().items()
            if server.is_readable and address not in chosen
        ]  # fmt: skip
        return [_At(address) for address in chosen], [_At(address) for address in others]

    def _read_those_that_answer(self, members: list[_At]) -> list[Oplog]:
        """Read members that nothing depends on now; one that is going down is no reason to see nothing at all."""
        oplogs = []
        for member in members:
            with suppress(PyMongoError, OplogUnreadable):
                oplogs.append(self._read_member(member))
        return oplogs

    def _read_member(self, member: _At) -> Oplog:
        first, last = self._edge(member, 1), self._edge(member, -1)
        size = self._client["local"].command("collStats", "oplog.rs", read_preference=member)
        if first is None or last is None:
            raise OplogUnreadable(f"{self.shard} has no oplog", hint="Only members of a replica set have one.")
        # 4.2 gives large sizes as doubles.
        used, limit = int(size["size"]), int(size["maxSize"])
        return Oplog(
            self.shard, first["ts"], last["ts"], used, limit, complete=_initiates(first), member=member.name_of_member
        )

    def _edge(self, member: _At, direction: int) -> Document | None:
        entries = self._client["local"].get_collection("oplog.rs", read_preference=member)
        wanted = {"ts": 1, "op": 1, "o.msg": 1}
        return next(entries.find({}, wanted).sort("$natural", direction).limit(1), None)


def _initiates(entry: Document) -> bool:
    """Whether it is the entry that initiated the set; servers take a log that begins with it for a complete one."""
    return bool(entry["op"] == "n" and entry.get("o", {}).get("msg") == "initiating set")


class RetentionReader(ShardReader):
    """Amazon DocumentDB: its log is not to be seen, only for how long it keeps changes."""

    def __init__(self, client: MongoClient[Document], retention_hours: float) -> None:
        super().__init__(client, Family.DOCUMENTDB.value)
        self._seconds = int(retention_hours * 3600)

    def read(self) -> Oplog:
        """Take the retention for the window, up to the server's operation time; a share of it is a share of bytes."""
        with _readable():
            last: Timestamp = self._client.admin.command("ping")["operationTime"]
        first = Timestamp(max(0, last.time - self._seconds), 0)
        return Oplog(self.shard, first, last, used_bytes=self._seconds, limit_bytes=self._seconds)


@contextmanager
def shard_readers(
    uris: Sequence[str], timeout_seconds: float = 10.0, family: str = "auto", retention_hours: float = 3.0
) -> Iterator[list[ShardReader]]:
    """Readers for the replica sets at these URIs; a config server or mongos stands for all of its shards."""
    with ExitStack() as opened:
        readers: list[ShardReader] = []
        for uri in uris:
            client = opened.enter_context(_connect(uri, timeout_seconds))
            with _readable():
                Deployment.of(client).require_change_streams(masked(uri))
                if family_of(client, family) is Family.DOCUMENTDB:
                    readers.append(RetentionReader(client, retention_hours))
                    continue
            shards = _shards_of(client)
            if not shards:
                readers.append(ShardReader(client))
            for name, hosts in shards.items():
                shard_client = opened.enter_context(_connect(shard_uri(uri, hosts), timeout_seconds))
                readers.append(ShardReader(shard_client, name))
        yield readers


def shard_uri(uri: str, hosts: str) -> str:
    """The URI of one shard, whose `hosts` are like `s0/a:27018,b:27018`, with the user and options of another URI."""
    parts = _URI.fullmatch(uri)
    assert parts is not None, "a client has connected with it"
    replica_set, _, addresses = hosts.rpartition("/")
    given = (parts["options"] or "").split("&")
    options = [option for option in given if option and option.split("=")[0].lower() not in _OF_THE_ROUTER_ALONE]
    names = {name.lower() for name, _ in parse_qsl("&".join(options))}
    if parts["scheme"] == "mongodb+srv" and not names & {"tls", "ssl"}:
        options.append("tls=true")  # what the SRV form implies
    if replica_set:
        options.append(f"replicaSet={replica_set}")
    return f"mongodb://{parts['user'] or ''}{addresses}{parts['path'] or '/'}?{'&'.join(options)}"


def _connect(uri: str, timeout_seconds: float) -> MongoClient[Document]:
    try:
        return MongoClient(uri, serverSelectionTimeoutMS=int(timeout_seconds * 1000))
    except (InvalidURI, ConfigurationError, ValueError) as error:
        message = f"{masked(uri)} is not a MongoDB URI: {masked(str(error))}"
        raise SettingsError(message, hint="It looks like mongodb://host:27017/.") from None


def _shards_of(client: MongoClient[Document]) -> dict[str, str]:
    """The shards of a cluster by name, when the client talks to its config server or router; else nothing."""
    with _readable():
        hello = client.admin.command("isMaster")
        is_cluster = hello.get("msg") == "isdbgrid" or "configsvr" in hello
        if not is_cluster:
            return {}
        return {shard["_id"]: shard["host"] for shard in client["config"]["shards"].find().sort("_id", 1)}


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OperationFailure as error:
        reason = masked(str((error.details or {}).get("errmsg", error)))
        if error.code == server_codes.AUTHENTICATION_FAILED:
            hint = "Check the user, the password and authSource in the URI."
            raise SettingsError(f"the server refused the user: {reason}", hint=hint) from None
        raise OplogUnreadable(f"the oplog may not be read: {reason.partition(' to execute command')[0]}") from None
    except PyMongoError as error:
        raise ServerUnreachable(f"the oplog cannot be read now: {shown_failure(error)}") from error
