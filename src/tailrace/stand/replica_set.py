"""A replica set of one or three `mongod` processes, initiated and ready to be written to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bson import Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from tailrace import server_codes
from tailrace.errors import ServerDidNotStart, StandError
from tailrace.owned.closeable import Closeable
from tailrace.retry import DEFAULT_POLICY, retried
from tailrace.stand.mongod_binary import DEFAULT_VERSION, MongodBinary
from tailrace.stand.node import Access, Credentials, Document, Node, NodeOptions, ThrowAwayCA
from tailrace.stand.server import ServerFolder

_SECONDS_TO_ELECT = 60
_SECONDS_TO_ROLL_OVER = 120

T = TypeVar("T")


def _is_position_lost(error: Exception) -> bool:
    return isinstance(error, OperationFailure) and error.code == server_codes.CAPPED_POSITION_LOST


class ReplicaSet(Closeable):
    """Real `mongod` processes on loopback that end when this object is closed, or with this process."""

    def __init__(self, name: str, nodes: Sequence[Node], binary: MongodBinary, folder: ServerFolder) -> None:
        self.name = name
        self.nodes = tuple(nodes)
        self.version = binary.version
        self.release = binary.release
        self._folder = folder

    @classmethod
    def start(
        cls,
        version: str = DEFAULT_VERSION,
        *,
        nodes: int = 1,
        name: str = "rs0",
        mongod: str | Path | None = None,
        oplog_mb: int = 990,
        parameters: Mapping[str, object] | None = None,
        priorities: Sequence[float] | None = None,
        election_timeout_ms: int = 1_000,
        role: str | None = None,
        auth: bool | Access = False,
        tls: bool = False,
        folder: Path | None = None,
    ) -> ReplicaSet:
        """Start the processes, initiate the set and wait for its primary.

        `mongod` names the user's own program instead of a pinned version; `role` is "configsvr" or
        "shardsvr"; `auth` makes a key file and a root user, whose credentials the URIs then carry (or takes those
        that several sets have in common); `tls` makes a throw-away authority. The smallest oplog that the server
        accepts is 1 MB.
        """
        binary = MongodBinary.at(mongod) if mongod else MongodBinary.of_version(version)
        home = ServerFolder.make(f"mongodb-{name}", folder)
        access = Access.make() if auth is True else auth or None
        options = NodeOptions(
            binary,
            name,
            oplog_mb,
            parameters or {},
            role,
            access.write_key(home.path) if access else None,
            ThrowAwayCA.make(home.path) if tls else None,
        )
        made = [Node(options, home.path / f"node{index}") for index in range(nodes)]
        replica_set = cls(name, made, binary, home)
        try:
            for node in made:
                node.launch()
            for node in made:
                node.wait_ready()
            replica_set._initiate(priorities or [1.0] * nodes, election_timeout_ms, role)
            if access:
                replica_set._create_root(access)
        except BaseException:
            replica_set.close()
            raise
        return replica_set

    @property
    def uri(self) -> str:
        """A URI of the whole set, with credentials when there are any."""
        hosts = ",".join(node.address for node in self.nodes)
        return self.nodes[0].uri_with(f"replicaSet={self.name}", hosts=hosts)

    @property
    def credentials(self) -> Credentials | None:
        """The root user, when the set was started with `auth`."""
        return self.nodes[0].credentials

    @property
    def primary(self) -> Node:
        """The node that accepts writes; waits for an election that is under way."""
        return self._wait(self._find_primary, f"no primary in {self.name} after {_SECONDS_TO_ELECT} s")

    @property
    def secondaries(self) -> tuple[Node, ...]:
        """All nodes but the primary."""
        primary = self.primary
        return tuple(node for node in self.nodes if node is not primary)

    def client(self, **options: Any) -> MongoClient[Document]:
        """A new client of the set; the caller closes it."""
        return MongoClient(self.uri, **{"serverSelectionTimeoutMS": 20_000, **options})

    def close(self) -> None:
        """End all processes and remove their data."""
        for node in self.nodes:
            node.close()
        self._folder.remove()

    def add_user(self, user: str, password: str, roles: Sequence[object]) -> Credentials:
        """Make a user on `admin` and return its credentials."""
        self.primary.command({"createUser": user, "pwd": password, "roles": list(roles)})
        return Credentials(user, password)

    def step_down(self, seconds: int = 10) -> None:
        """Make the primary a secondary for some seconds; another node is then elected."""
        primary = self.primary
        try:
            primary.command({"replSetStepDown": seconds, "secondaryCatchUpPeriodSecs": 1, "force": True})
        except AutoReconnect:
            return  # before 4.2 the server closed the connection instead of answering

    def oplog(self, after: Timestamp | None = None) -> list[bytes]:
        """The raw entries of `local.oplog.rs`, oldest first, after a time when one is given."""
        with self.primary.client(document_class=RawBSONDocument) as client:
            query = {} if after is None else {"ts": {"$gt": after}}
            found = client.local["oplog.rs"].find(query).sort("$natural", 1)
            return [entry.raw for entry in found]  # type: ignore[attr-defined]

    def oplog_bounds(self) -> tuple[Timestamp, Timestamp]:
        """The times of the first and the last oplog entry."""
        with self.primary.client() as client:
            entries = client.local["oplog.rs"]

            def edge(direction: int) -> Timestamp:
                found: Timestamp = entries.find({}, {"ts": 1}).sort("$natural", direction).limit(1).next()["ts"]
                return found

            # The oldest entry may be removed while it is read.
            return retried(lambda: edge(1), DEFAULT_POLICY, is_passing=_is_position_lost), edge(-1)

    def roll_over_oplog(self, past: Timestamp | None = None) -> Timestamp:
        """Write no-ops until every entry up to `past` (by default: all now there) has left the oplog.

        Needs a small oplog (`oplog_mb=1`). Returns the time of the first entry that is left.
        """
        target = past or self.oplog_bounds()[1]
        padding = "x" * 200_000
        deadline = time.monotonic() + _SECONDS_TO_ROLL_OVER
        with self.primary.client() as client:
            while (first := self.oplog_bounds()[0]) <= target:
                if time.monotonic() > deadline:
                    raise StandError(f"the oplog still begins at {first}, not after {target}")
                for _ in range(20):
                    client.admin.command({"appendOplogNote": 1, "data": {"padding": padding}})
                time.sleep(0.05)
        return first

    def _initiate(self, priorities: Sequence[float], election_timeout_ms: int, role: str | None) -> None:
        members = [
            {"_id": index, "host": node.address, "priority": priority}
            for index, (node, priority) in enumerate(zip(self.nodes, priorities, strict=True))
        ]
        settings = {"electionTimeoutMillis": election_timeout_ms, "heartbeatIntervalMillis": 200}
        config: Document = {"_id": self.name, "members": members, "settings": settings}
        if role == "configsvr":
            config["configsvr"] = True
        self.nodes[0].command({"replSetInitiate": config})
        self._wait(self._find_primary, f"no primary in {self.name} after {_SECONDS_TO_ELECT} s")
        self._wait(self._all_caught_up, f"{self.name} has members that never became secondaries")

    def _create_root(self, access: Access) -> None:
        """Make the root user through the localhost exception and hand its credentials to the nodes."""
        self.add_user(access.root.user, access.root.password, access.roles)
        for node in self.nodes:
            node.credentials = access.root

    def _find_primary(self) -> Node | None:
        return next((node for node in self.nodes if node.alive and node.is_primary()), None)

    def _all_caught_up(self) -> bool | None:
        """Whether every node answers as primary or secondary; None, like False, means not yet."""
        for node in self.nodes:
            try:
                hello = node.command({"isMaster": 1})
            except (OperationFailure, PyMongoError):
                return None
            if not (hello.get("ismaster") or hello.get("secondary")):
                return None
        return True

    def _wait(self, poll: Callable[[], T | None], problem: str) -> T:
        deadline = time.monotonic() + _SECONDS_TO_ELECT
        while (found := poll()) is None:
            if time.monotonic() > deadline:
                raise ServerDidNotStart(f"{problem}; logs: {', '.join(str(node.log) for node in self.nodes)}")
            time.sleep(0.02)
        return found
