"""A REST catalog of Iceberg: the server that Iceberg's own tests use, from Maven Central, over a catalog in SQLite.

The jars hold the server and its adapter in their test artifacts, so these are fetched by classifier; Hadoop, of which
the server needs the configuration and local files, comes with pyspark. It has no setting for its address and listens
on every interface, so it is for tests with data of their own.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tailrace.errors import MissingExtra
from tailrace.stand.java import java_home
from tailrace.stand.maven import fetch_jars, read_checksums
from tailrace.stand.process import ServerProcess
from tailrace.stand.server import ServerFolder, SingleServer, ask

VERSION = "1.11.0"
_JETTY = "12.1.3"
_COORDINATES = (
    f"org.apache.iceberg:iceberg-core:{VERSION}",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{_JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-server:{_JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-gzip:{_JETTY}",
    "org.apache.httpcomponents:httpcore:4.4.16",
    "org.slf4j:slf4j-simple:2.0.17",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
_SERVER = (
    f"org.apache.iceberg:iceberg-core:{VERSION}:tests",
    f"org.apache.iceberg:iceberg-open-api:{VERSION}:test-fixtures",
)
_CHECKSUMS = Path(__file__).with_name("rest_catalog.sha256")
_SECONDS_TO_START = 300.0


def jars() -> list[Path]:
    """The jars of the server, fetched on the first call (36 MB)."""
    checksums = read_checksums(_CHECKSUMS)
    names = {":".join(one.split(":")[1:]).replace(":", "-") + ".jar" for one in _SERVER}
    server = {name: checksum for name, checksum in checksums.items() if name in names}
    others = {name: checksum for name, checksum in checksums.items() if name not in names}
    return [
        *fetch_jars("rest-catalog", _SERVER, server),
        *fetch_jars("rest-catalog-libraries", _COORDINATES, others),
        *_hadoop(),
    ]


def _hadoop() -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.origin:
        raise MissingExtra("a REST catalog needs pyspark", hint="Install it with: pip install 'tailrace[spark]'")
    return sorted((Path(spec.origin).parent / "jars").glob("hadoop-client-*.jar"))


class RestCatalog(SingleServer):
    """One process; its tables are in a folder that its clients can reach, too."""

    name = "rest-catalog"

    def __init__(self, class_path: str, warehouse: Path, folder: ServerFolder) -> None:
        super().__init__(folder)
        # The server reads its settings from variables: `__` stands for a dash and `_` for a dot.
        settings = {
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_WAREHOUSE": str(warehouse),
            "CATALOG_URI": f"jdbc:sqlite:{folder.path / 'catalog.db'}",
        }
        java = [str(java_home() / "bin" / "java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
        self._process = ServerProcess(
            f"iceberg REST catalog {VERSION} at port {self.port}",
            [*java, "-cp", class_path, "org.apache.iceberg.rest.RESTCatalogServer"],
            log=self._log_file,
            folder=folder.path,
            environment=settings,
        )

    @classmethod
    def start(cls, warehouse: Path, *, folder: Path | None = None) -> RestCatalog:
        """Start a catalog without any tables; those to come are in the folder `warehouse`."""
        class_path = ":".join(map(str, jars()))
        return cls(class_path, warehouse, ServerFolder.make(cls.name, folder))._started()

    @property
    def url(self) -> str:
        """What a client's `uri` is set to."""
        return f"http://{self.address}"

    def wait_ready(self) -> None:
        """Return when it answers."""
        self._process.wait_until(self._answers, timeout=_SECONDS_TO_START)

    def _answers(self) -> bool:
        """Whether it gives its configuration."""
        request = f"GET /v1/config HTTP/1.1\r\nHost: {self.address}\r\nConnection: close\r\n\r\n"
        return ask(self.port, request.encode(), 15) == b"HTTP/1.1 200 OK"
