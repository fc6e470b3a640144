"""Standalone servers, which the tests of the `single` topology need; everything else is a replica set."""

from __future__ import annotations

from pathlib import Path

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tailrace.stand.mongod_binary import MongodBinary
from tailrace.stand.ports import reserve_port
from tailrace.stand.process import ServerProcess


class Standalone:
    """A `mongod` without a replica set, and so without an oplog."""

    def __init__(self, version: str, folder: Path) -> None:
        data = folder / "data"
        data.mkdir(parents=True)
        binary = MongodBinary.of_version(version).in_folder(folder, folder)
        self._prefix = binary.prefix
        self._port = reserve_port()
        self.uri = f"mongodb://127.0.0.1:{self._port.number}/?directConnection=true"
        command = [*binary.command, "--bind_ip", "127.0.0.1", "--port", str(self._port.number)]
        command += ["--dbpath", binary.argument(data), "--wiredTigerCacheSizeGB", "0.25"]
        command += ["--setParameter", "enableTestCommands=1", "--setParameter", "diagnosticDataCollectionEnabled=false"]
        self._process = ServerProcess(
            f"standalone mongod {version}", command, log=folder / "mongod.log", environment=binary.environment
        )
        self._process.launch()
        self._process.wait_until(self._answers)

    def _answers(self) -> bool:
        with MongoClient(self.uri, serverSelectionTimeoutMS=500) as client:
            try:
                client.admin.command("ping")
            except PyMongoError:
                return False
        return True

    def close(self) -> None:
        self._process.kill()
        if self._prefix is not None:
            self._prefix.remove()
        self._port.release()
