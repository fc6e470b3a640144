"""A schema registry that speaks Confluent's API: Apicurio Registry from Maven Central, with its schemas in memory."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tailrace.stand.java import java_home
from tailrace.stand.maven import fetch_archive
from tailrace.stand.ports import reserve_port
from tailrace.stand.process import ServerProcess
from tailrace.stand.server import ServerFolder, SingleServer, ask

VERSION = "3.3.3"
_SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_JAVA = (21,)
_SECONDS_TO_START = 300.0
_PATH = "/apis/ccompat/v7"


def program() -> Path:
    """The jar to run, fetched on the first call (159 MB)."""

    def unpack(archive: Path, folder: Path) -> None:
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")

    folder = fetch_archive(f"io.apicurio:apicurio-registry-app:{VERSION}", "all", "tar.gz", _SHA256, unpack)
    return folder / "quarkus-run.jar"


class Registry(SingleServer):
    """One process; it needs Java 21 and takes some ten seconds to start."""

    name = "registry"

    def __init__(self, jar: Path, folder: ServerFolder) -> None:
        super().__init__(folder)
        self._management_port = reserve_port()
        java = str(java_home(_JAVA) / "bin" / "java")
        options = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": self._management_port.number,
        }
        arguments = [f"-D{name}={value}" for name, value in options.items()]
        self._process = ServerProcess(
            f"apicurio registry {VERSION} at port {self.port}",
            [java, "-Xmx384m", "-XX:+UseSerialGC", "-XX:-UsePerfData", *arguments, "-jar", str(jar)],
            log=self._log_file,
            folder=folder.path,
        )

    @classmethod
    def start(cls, *, folder: Path | None = None) -> Registry:
        """Start a registry without any schemas."""
        return cls(program(), ServerFolder.make(cls.name, folder))._started()

    @property
    def url(self) -> str:
        """Where its clients find Confluent's API."""
        return f"http://{self.address}{_PATH}"

    def wait_ready(self) -> None:
        """Return when it answers: half a minute on a busy machine, before it has compiled itself."""
        self._process.wait_until(self._answers, timeout=_SECONDS_TO_START)

    def close(self) -> None:
        """End it and give its ports back."""
        super().close()
        self._management_port.release()

    def _answers(self) -> bool:
        """Whether it lists its subjects."""
        request = f"GET {_PATH}/subjects HTTP/1.1\r\nHost: {self.address}\r\nConnection: close\r\n\r\n"
        return ask(self.port, request.encode(), 15) == b"HTTP/1.1 200 OK"
