"""A Kafka broker: KRaft, one node that is controller and broker at once, from the jars on Maven Central."""

from __future__ import annotations

import base64
import struct
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tailrace.errors import ServerDidNotStart
from tailrace.owned import run_guarded
from tailrace.stand.java import java_home
from tailrace.stand.maven import fetch_jars, read_checksums
from tailrace.stand.ports import reserve_port
from tailrace.stand.process import ServerProcess
from tailrace.stand.server import ServerFolder, SingleServer, ask

VERSION = "4.3.1"

_COORDINATES = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
_CHECKSUMS = Path(__file__).with_name("kafka.sha256")
_SECONDS_TO_FORMAT = 120
_SMALL_JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_LOG_LEVELS = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",  # 700 lines of settings
)
_ONE_NODE = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "DIRECT",
    "listener.security.protocol.map": (
        "DIRECT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_SSL,MUTUAL:SSL"
    ),
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    # A broker that comes back after a crash is let in when its old session has ended: 9 s by default.
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 500,
}


def jars() -> list[Path]:
    """The broker's jars, fetched on the first call."""
    return fetch_jars("kafka", _COORDINATES, read_checksums(_CHECKSUMS))


class Proxy(Protocol):
    """What stands between a broker and some of its clients."""

    @property
    def address(self) -> str:
        """Where clients reach it."""

    def aim(self, target_port: int) -> None:
        """Lead new connections to another loopback port."""


class Security(Protocol):
    """Who may come over TLS, and how."""

    @property
    def java_options(self) -> list[str]:
        """What the broker's JVM has to know beforehand."""

    @property
    def credentials(self) -> list[str]:
        """What is written into the log folder when it is formatted."""

    def properties(self, folder: Path, by_sasl: str, by_certificate: str) -> Mapping[str, object]:
        """Give the settings of the broker for its two listeners."""


class Kafka(SingleServer):
    """One broker that clients reach directly and, when a proxy was given, through the proxy.

    A client that is sent through a proxy needs a listener of its own, because a broker tells its clients which
    address to use; the broker's talk with itself (transaction markers) never goes through the proxy.
    """

    name = "kafka"

    def __init__(
        self,
        java: Sequence[str],
        folder: ServerFolder,
        properties: Mapping[str, object],
        proxy: Proxy | None,
        security: Security | None,
    ) -> None:
        super().__init__(folder)
        self._java = java
        self._controller_port = reserve_port()
        self._proxied_port = reserve_port()
        self._secured_port = reserve_port()
        self._mutual_port = reserve_port()
        self._proxy = proxy
        self._security = security
        self._config = folder.path / "server.properties"
        self._write_config(properties)
        if proxy:
            proxy.aim(self._proxied_port.number)
        self._process = ServerProcess(
            f"kafka {VERSION} at port {self.port}",
            [*java, "kafka.Kafka", str(self._config)],
            log=self._log_file,
            folder=folder.path,
        )

    @classmethod
    def start(
        cls,
        properties: Mapping[str, object] | None = None,
        *,
        proxy: Proxy | None = None,
        security: Security | None = None,
        folder: Path | None = None,
    ) -> Kafka:
        """Format a log folder and start a broker on it.

        `properties` are those of `server.properties`, such as {"message.max.bytes": 20_000_000}; `proxy` is aimed at
        the broker, and `proxied_servers` then leads through it. With `security` it can be reached over TLS as well, by
        the users who are named there: `secured_servers`, and `mutual_servers` for who has a certificate.
        """
        class_path = f"{jars()[0].parent}/*"
        options = [*_SMALL_JVM, *_LOG_LEVELS, *(security.java_options if security else ())]
        java = [str(java_home() / "bin" / "java"), *options, "-cp", class_path]
        return cls(java, ServerFolder.make(cls.name, folder), properties or {}, proxy, security)._started()

    @property
    def bootstrap_servers(self) -> str:
        """What a client's `bootstrap.servers` is set to."""
        return self.address

    @property
    def proxied_servers(self) -> str:
        """The same, for a client whose every connection goes through the proxy."""
        if self._proxy is None:
            raise ValueError("this broker was started without a proxy")
        return self._proxy.address

    @property
    def secured_servers(self) -> str:
        """The same, for a client that comes over TLS and says who it is."""
        if self._security is None:
            raise ValueError("this broker was started without security")
        return f"127.0.0.1:{self._secured_port.number}"

    @property
    def mutual_servers(self) -> str:
        """The same, for a client that has a certificate and no password."""
        if self._security is None:
            raise ValueError("this broker was started without security")
        return f"127.0.0.1:{self._mutual_port.number}"

    def close(self) -> None:
        """End it, remove its data and give its ports back."""
        super().close()
        self._controller_port.release()
        self._proxied_port.release()
        self._secured_port.release()
        self._mutual_port.release()

    def _write_config(self, properties: Mapping[str, object]) -> None:
        controller = f"127.0.0.1:{self._controller_port.number}"
        listeners = [f"DIRECT://{self.address}"]
        advertised = list(listeners)
        if self._proxy:
            listeners.append(f"PROXIED://127.0.0.1:{self._proxied_port.number}")
            advertised.append(f"PROXIED://{self._proxy.address}")
        if self._security:
            secured = [f"SECURED://{self.secured_servers}", f"MUTUAL://{self.mutual_servers}"]
            listeners += secured
            advertised += secured
        chosen = {
            **_ONE_NODE,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": ",".join([*listeners, f"CONTROLLER://{controller}"]),
            "advertised.listeners": ",".join(advertised),
            "log.dirs": self._folder.path / "data",
            **(self._security.properties(self._folder.path, "secured", "mutual") if self._security else {}),
            **properties,
        }
        self._config.write_text("".join(f"{name}={value}\n" for name, value in chosen.items()))

    def _prepare(self) -> None:
        """Format the log folder."""
        # The zero keeps the id from beginning with "-", which the tool would take for an option.
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster]
        result = run_guarded(
            [*command, "-c", str(self._config), *(self._security.credentials if self._security else ())],
            cwd=self._folder.path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_FORMAT,
        )
        if result.returncode:
            printed = (result.stderr or result.stdout).strip()
            raise ServerDidNotStart(f"Kafka could not format its folder: {printed[-2000:]}")

    def _answers(self) -> bool:
        """Whether a Metadata request (version 1, no topics) is answered with a live broker."""
        request = struct.pack(">hhihi", 3, 1, 1, -1, 0)
        answer = ask(self.port, struct.pack(">i", len(request)) + request, 12)
        return len(answer) == 12 and struct.unpack(">iii", answer)[2] == 1
