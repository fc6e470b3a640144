"""One `mongod` process: its folder, its port, and what a test may do to it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from tailrace.errors import MissingExtra
from tailrace.stand.mongod_binary import MongodBinary
from tailrace.stand.process import ServerProcess
from tailrace.stand.server import Server


@dataclass(frozen=True, slots=True)
class ThrowAwayCA:
    """The files that a server and its clients need: the authority, and a certificate with its key for each side."""

    ca_file: Path
    certificate_key_file: Path
    client_certificate_key_file: Path
    other_client_certificate_key_file: Path
    """Of another client, by the same authority."""

    @classmethod
    def make(cls, folder: Path) -> ThrowAwayCA:
        """Make an authority and a certificate for loopback in the folder."""
        try:
            import trustme
        except ImportError as error:
            raise MissingExtra("TLS needs trustme", hint="pip install 'tailrace[stand]'") from error
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        client = authority.issue_cert("client@localhost", common_name="client", organization_name="clients")
        other = authority.issue_cert("other@localhost", common_name="other", organization_name="clients")
        made = cls(folder / "ca.pem", folder / "server.pem", folder / "client.pem", folder / "other.pem")
        authority.cert_pem.write_to_path(str(made.ca_file))
        certificate.private_key_and_cert_chain_pem.write_to_path(str(made.certificate_key_file))
        client.private_key_and_cert_chain_pem.write_to_path(str(made.client_certificate_key_file))
        other.private_key_and_cert_chain_pem.write_to_path(str(made.other_client_certificate_key_file))
        return made


Document = dict[str, Any]

_SMALL_OPLOG_MB = 16
"""An oplog this small is there to be rolled over. The server only drops entries that a checkpoint has made
unnecessary, and takes one a minute: a `fsync` command does not count, nor does the parameter `syncdelay`."""
_CACHE_GB = 0.25
_CACHE_GB_OF_SMALL_OPLOG = 1.0
"""It is filled at once by whoever rolls such an oplog over. With 0.25 a mongod 4.2.6 came to stand still for good: the
thread that takes checkpoints waited, like all others, for room that only a checkpoint makes."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of the `admin` database."""

    user: str
    password: str = field(repr=False)

    @property
    def uri_part(self) -> str:
        """`user:password@`, escaped for a URI."""
        return f"{quote_plus(self.user)}:{quote_plus(self.password)}@"


@dataclass(frozen=True, slots=True)
class Access:
    """What makes servers ask who their clients are: a key that the members share, and a first user."""

    root: Credentials
    key: str = field(repr=False)
    roles: tuple[str, ...] = ("root",)

    @classmethod
    def make(cls, *roles: str) -> Access:
        """Make up a key and a password; more roles than `root` are for who speaks as the servers do."""
        return cls(Credentials("root", secrets.token_urlsafe(12)), secrets.token_hex(64), ("root", *roles))

    def write_key(self, folder: Path) -> Path:
        """Write the key file; mongod refuses one that others may read."""
        path = folder / "keyfile"
        path.write_text(self.key)
        path.chmod(0o600)
        return path


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a `mongod` is started."""

    binary: MongodBinary
    replica_set: str
    oplog_mb: int
    parameters: Mapping[str, object]
    role: str | None = None
    key_file: Path | None = None
    tls: ThrowAwayCA | None = None

    def command(self, port: int, data: Path) -> list[str]:
        """The command line."""
        path, is_windows = self.binary.argument, self.binary.is_windows
        parts = [*self.binary.command, "--replSet", self.replica_set, "--bind_ip", "127.0.0.1"]
        parts += ["--port", str(port), "--dbpath", path(data), "--oplogSize", str(self.oplog_mb)]
        if not is_windows:
            parts.append("--nounixsocket")
        is_small = self.oplog_mb <= _SMALL_OPLOG_MB
        parts += ["--wiredTigerCacheSizeGB", str(_CACHE_GB_OF_SMALL_OPLOG if is_small else _CACHE_GB)]
        if is_small:
            parts += ["--syncdelay", "1"]
        if self.role:
            parts.append(f"--{self.role}")
        if self.key_file:
            parts += ["--keyFile", path(self.key_file)]
        if self.tls:
            parts += ["--tlsMode", "requireTLS", "--tlsCAFile", path(self.tls.ca_file)]
            parts += ["--tlsCertificateKeyFile", path(self.tls.certificate_key_file)]
            parts.append("--tlsAllowConnectionsWithoutCertificates")
        # The thread that collects those asks Windows for what Wine does not have, and the server dies of it.
        defaults = {"diagnosticDataCollectionEnabled": False} if is_windows else {}
        for name, value in {"enableTestCommands": 1, **defaults, **self.parameters}.items():
            shown = str(value).lower() if isinstance(value, bool) else value
            parts += ["--setParameter", f"{name}={shown}"]
        return parts


class Node(Server):
    """A `mongod` of a replica set. Its port and data stay the same over kills and restarts."""

    def __init__(self, options: NodeOptions, folder: Path) -> None:
        super().__init__()
        binary = options.binary.in_folder(folder, folder.parent)
        self._options = options = replace(options, binary=binary)
        self._prefix = binary.prefix
        self.credentials: Credentials | None = None
        data = folder / "data"
        data.mkdir(parents=True)
        self._process = ServerProcess(
            f"mongod {options.binary.version} at port {self.port}",
            options.command(self.port, data),
            log=folder / "mongod.log",
            environment=binary.environment,
        )

    def launch(self) -> None:
        """Start the process without waiting for it."""
        if self._prefix is not None:
            self._prefix.end()
        super().launch()

    def close(self) -> None:
        """End it and give its port back."""
        super().close()
        if self._prefix is not None:
            self._prefix.remove()

    @property
    def uri(self) -> str:
        """A URI that connects to this node alone."""
        return self.uri_with("directConnection=true")

    def uri_with(self, *options: str, hosts: str | None = None) -> str:
        """A URI with the node's credentials and TLS files, and these options."""
        user = self.credentials.uri_part if self.credentials else ""
        all_options = list(options)
        if self.credentials:
            all_options.append("authSource=admin")
        if self._options.tls:
            all_options += ["tls=true", f"tlsCAFile={quote_plus(str(self._options.tls.ca_file))}"]
        return f"mongodb://{user}{hosts or self.address}/?{'&'.join(all_options)}"

    def client(self, **options: Any) -> MongoClient[Document]:
        """A new client of this node alone; the caller closes it."""
        return MongoClient(self.uri, **{"serverSelectionTimeoutMS": 10_000, **options})

    def command(self, command: Document, database: str = "admin") -> Document:
        """Run one command on this node."""
        with self.client() as client:
            return dict(client[database].command(command))

    def set_fail_point(self, name: str, mode: object, data: Document | None = None) -> None:
        """Switch a fail point; `mode` is "alwaysOn", "off" or a document such as {"times": 1}."""
        command: Document = {"configureFailPoint": name, "mode": mode}
        self.command(command if data is None else {**command, "data": data})

    @contextmanager
    def fail_point(self, name: str, mode: object, data: Document | None = None) -> Iterator[None]:
        """A fail point that is off again afterwards."""
        self.set_fail_point(name, mode, data)
        try:
            yield
        finally:
            self.set_fail_point(name, "off")

    def is_primary(self) -> bool:
        """Whether it accepts writes."""
        try:
            with self.client(serverSelectionTimeoutMS=500, socketTimeoutMS=2000) as client:
                return bool(client.admin.command("isMaster").get("ismaster"))
        except PyMongoError:
            return False

    def _answers(self) -> bool:
        try:
            with self.client(serverSelectionTimeoutMS=500) as client:
                client.admin.command("ping")
        except OperationFailure:
            return True
        except (AutoReconnect, OSError):
            return False
        return True
