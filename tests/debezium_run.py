"""Real Debezium beside ours on the same events: its records, and what they were made of.

    python tests/debezium_run.py   # records tests/data/debezium-3.6.1.jsonl.xz anew

Debezium runs on Java 21, on which its own images run; Java 17 writes a few doubles and the newest characters otherwise.
"""

from __future__ import annotations

import base64
import json
import lzma
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import bson
from bson import Timestamp
from bson.raw_bson import RawBSONDocument

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(path) for path in (ROOT, HERE) if str(path) not in sys.path]

from bench.peers import DEBEZIUM  # noqa: E402

import debezium_workload  # noqa: E402 - the path is set above
from tailrace.capture.formats import snapshot_event  # noqa: E402
from tailrace.owned import GuardedProcess, run_guarded  # noqa: E402
from tailrace.stand import ReplicaSet  # noqa: E402
from tailrace.stand.cache import unpacked_wheel  # noqa: E402
from tailrace.stand.java import RUNTIME  # noqa: E402

GOLDEN = ROOT / "tests" / "data" / "debezium-3.6.1.jsonl.xz"
MODES: Mapping[str, Mapping[str, str]] = {
    "change_streams": {},
    "change_streams_update_full_with_pre_image": {
        "full_document": "whenAvailable",
        "full_document_before_change": "whenAvailable",
    },
}
_TOKEN = bson.encode({"_data": "8265F0A1B2000000072B0229296E04"})


class Pair(NamedTuple):
    """An event and the records that Debezium made of it; times of the clock are 0 in them."""

    event: bytes
    records: list[tuple[bytes, bytes | None]]


def masked(value: bytes | None) -> bytes | None:
    """Put 0 for the time at which a record was made, and for the mark of the last document of a snapshot the usual one.

    A snapshot of ours is read in chunks while the stream goes on, and has no last document.
    """
    if value is None:
        return None
    if b'"op":"r"' in value:
        value = re.sub(rb'"ts_(ms|us|ns)":\d+', rb'"ts_\1":0', value)
        value = value.replace(b'"snapshot":"last"', b'"snapshot":"true"')
    return re.sub(rb'"op":"(.)","ts_ms":\d+', rb'"op":"\1","ts_ms":0', value)


def run(version: str, mode: str, folder: Path) -> list[Pair]:
    """Let both see the workload on a server of its own."""
    with ReplicaSet.start(version, folder=folder / "mongodb") as server, server.client() as client:
        database = client["shop"]
        if "image" in mode:
            for name in ("changed", "streamed"):
                database.create_collection(name, changeStreamPreAndPostImages={"enabled": True})
        count = debezium_workload.fill(database)
        with (
            _Debezium(server.uri, mode, folder) as debezium,
            server.client(document_class=RawBSONDocument) as raw_client,
        ):
            records = [debezium.next() for _ in range(count)]
            with raw_client["shop"].watch(**MODES[mode]) as stream:
                debezium_workload.work(client, database)
                while records[-1][0] != b'{"id":"\\"the end\\""}':
                    records.append(debezium.next())
                events = [*_until_the_end(stream)]
            documents = [document.raw for document in raw_client["shop"].snapshotted.find()]
    read = [snapshot_event("shop.snapshotted", each, _TOKEN, Timestamp(0x65F0A1B2, 7)) for each in documents]
    return [*_paired([*read, *events], records)]


def _until_the_end(stream: Any) -> Iterator[bytes]:
    for event in stream:
        yield event.raw
        if b"the end" in event.raw:
            return


def _paired(events: list[bytes], records: list[tuple[bytes, bytes | None]]) -> Iterator[Pair]:
    """A delete has two records, its own and a tombstone; every other event has one."""
    left = iter(records)
    for event in events:
        count = 2 if bson.decode(event, _LOOSE)["operationType"] == "delete" else 1
        yield Pair(event, [(key, masked(value)) for key, value in (next(left) for _ in range(count))])
    assert next(left, None) is None, "Debezium has made more records than there were events"


_LOOSE: Any = bson.CodecOptions(document_class=RawBSONDocument)


class _Debezium:
    """Its embedded engine, whose records are read one by one."""

    def __init__(self, uri: str, mode: str, folder: Path) -> None:
        settings = {
            "name": "shop",
            "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
            "mongodb.connection.string": uri,
            "topic.prefix": "shop",
            "database.include.list": "shop",
            "capture.mode": mode,
            "capture.mode.full.update.type": "post_image",
            "snapshot.mode": "initial",
            "converter.schemas.enable": "false",
            "poll.interval.ms": "10",
            "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        }
        javac = shutil.which("javac")
        if javac is None:
            raise RuntimeError("the program around Debezium has to be compiled: a JDK is needed")
        path = DEBEZIUM.class_path()
        source = str(HERE / "DebeziumRecords.java")
        run_guarded([javac, "--release", "17", "-cp", path, "-d", str(folder), source], check=True, timeout=300)
        java = unpacked_wheel(RUNTIME) / RUNTIME.name / "java-runtime" / "bin" / "java"
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        command = [str(java), "-Xmx512m", quiet, "-cp", f"{path}:{folder}", "DebeziumRecords"]
        self._log = (folder / "debezium.log").open("w")
        self._process = GuardedProcess[str](
            [*command, *(f"{name}={value}" for name, value in settings.items())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip

    def __enter__(self) -> _Debezium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def next(self) -> tuple[bytes, bytes | None]:
        """Give the key and the value of the next record."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line or line.startswith("@"):
            raise RuntimeError(f"Debezium has ended: {line}")
        _, key, value, headers = line.split()
        assert headers == "-", "Debezium's records have no headers"
        return base64.b64decode(key), None if value == "-" else base64.b64decode(value)


def save(pairs: list[Pair], file: Path) -> None:
    """Keep what a run has shown."""
    lines = (
        json.dumps(
            {
                "event": base64.b64encode(pair.event).decode(),
                "records": [[key.decode(), None if value is None else value.decode()] for key, value in pair.records],
            }
        )
        for pair in pairs
    )
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(lzma.compress("\n".join(lines).encode()))


def load(file: Path) -> list[Pair]:
    """Read what was kept."""
    read = [json.loads(line) for line in lzma.decompress(file.read_bytes()).decode().split("\n")]
    return [
        Pair(
            base64.b64decode(each["event"]),
            [(key.encode(), None if value is None else value.encode()) for key, value in each["records"]],
        )
        for each in read
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tailrace-debezium-") as temporary:
        save(run("6.0.5", "change_streams", Path(temporary)), GOLDEN)
    print(f"{GOLDEN} has been written")
