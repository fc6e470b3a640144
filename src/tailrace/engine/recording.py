"""Recordings: what real servers made of real oplogs, as JSON lines (`.jsonl`, `.jsonl.gz`).

A recording holds one or more oplogs, the stored pre-images, and change streams that were read over them:
commands, events, batches with their tokens, and where resuming led. `<name>.extra` continues `<name>`.
"""

from __future__ import annotations

import base64
import gzip
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import bson
from bson import json_util
from bson.json_util import JSONOptions

from tailrace import raw
from tailrace.engine.dialect import Dialect
from tailrace.errors import HistoryLost, RecordingInvalid
from tailrace.oplog.entry import OplogEntry
from tailrace.oplog.source import OplogBatch, OplogReader
from tailrace.raw.cluster_time import ClusterTime

_CANONICAL: Final = JSONOptions(json_mode=json_util.JSONMode.CANONICAL, tz_aware=False, uuid_representation=0)
_EXTRA: Final = ".extra"
_CACHED_CATALOG: Final = b"config.cache.collections"
"""Where a shard keeps what it knows of its cluster's sharded collections."""


@dataclass(slots=True)
class RecordedStream:
    """One change stream of a recording, with everything that was seen of it."""

    id: str
    shard: str
    database: str
    command: dict[str, Any]
    error: dict[str, Any] | None
    visible: int | None
    """Until when the oplog was written when the stream was read; None: to the end of the recording."""
    events: dict[int, bytes] = field(default_factory=dict)
    batches: list[dict[str, Any]] = field(default_factory=list)
    openings: list[dict[str, Any]] = field(default_factory=list)
    """Lines that tell what a stream opened at a token or time gave first."""

    @property
    def name(self) -> str:
        """Give a name that tells streams of the same kind on several shards apart."""
        return f"{self.shard}/{self.id}" if self.shard else self.id


@dataclass(slots=True)
class RecordedShard:
    """The log of one replica set, and what it stored besides."""

    entries: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    pre_images: dict[tuple[bytes, int, int], bytes] = field(default_factory=dict)
    _shard_keys: dict[bytes, Sequence[bytes]] | None = None

    def current_document(self, namespace: bytes, uuid: bytes | None, key: bytes, since: int) -> bytes | None:
        """Refuse: the documents of that time are gone."""
        raise RecordingInvalid("a recording holds no documents")

    def pre_image(self, uuid: bytes, time: int, index: int) -> bytes | None:
        """Find a pre-image the server had stored."""
        return self.pre_images.get((uuid, time, index))

    def shard_key(self, uuid: bytes) -> Sequence[bytes] | None:
        """Look a shard key up in what the shard logged of its copy of the catalog, as it was at the end."""
        if self._shard_keys is None:
            self._shard_keys = _logged_shard_keys(self.entries)
        return self._shard_keys.get(uuid)


def _logged_shard_keys(entries: Iterable[bytes]) -> dict[bytes, Sequence[bytes]]:
    """Read the shard keys of collections, by their UUIDs, from a shard's writes to its copy of the catalog."""
    catalog: dict[str, tuple[bytes, Sequence[bytes]]] = {}
    for entry in entries:
        if _CACHED_CATALOG not in entry:
            continue
        view = OplogEntry(entry)
        if view.namespace != _CACHED_CATALOG:
            continue
        written = bson.decode(view.o)
        name = written["_id"] if "_id" in written else bson.decode(view.o2 or raw.EMPTY)["_id"]
        changed = written.get("$set", written)
        if view.op == b"d":
            catalog.pop(name, None)
        elif "uuid" in changed and "key" in changed:
            catalog[name] = bytes(changed["uuid"]), tuple(path.encode() for path in changed["key"])
    return dict(catalog.values())


@dataclass(slots=True)
class Recording:
    """A main file and its extra one, read."""

    name: str
    dialect: Dialect
    shards: dict[str, RecordedShard] = field(default_factory=dict)
    streams: dict[tuple[str, str], RecordedStream] = field(default_factory=dict)


class RecordedOplog:
    """A recorded log as a source; `visible` moves the end of the log, as if it was still being written."""

    def __init__(self, shard: RecordedShard, visible: int | None = None) -> None:
        self._shard = shard
        self._visible = visible if visible is not None else (shard.times or [0])[-1]

    @property
    def visible(self) -> int:
        """The time until which the log is written."""
        return self._visible

    @visible.setter
    def visible(self, time: int) -> None:
        self._visible = time

    def open(self, since: int) -> OplogReader:
        """Read from a time on; a recording has all that came before its streams, so nothing is lost."""
        return _RecordedReader(self, self._shard, since)

    def entry_at(self, time: int) -> bytes:
        """Read the entry of exactly this time."""
        at = bisect_left(self._shard.times, time)
        if at == len(self._shard.times) or self._shard.times[at] != time:
            raise HistoryLost(
                f"the recording has no entry at {ClusterTime(time).seconds},{ClusterTime(time).increment}"
            )
        return self._shard.entries[at]


class _RecordedReader:
    """One pass over a recorded log."""

    def __init__(self, oplog: RecordedOplog, shard: RecordedShard, since: int) -> None:
        self._oplog = oplog
        self._shard = shard
        self._next = bisect_left(shard.times, since)
        self._reached = since

    def __iter__(self) -> Iterator[OplogBatch]:
        return self

    def __next__(self) -> OplogBatch:
        begin = self._next
        end = max(begin, bisect_right(self._shard.times, self._oplog.visible))
        if end > begin:
            self._reached = self._shard.times[end - 1]
        self._next = end
        return OplogBatch(self._shard.entries[begin:end], self._reached)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def group_files(paths: Iterable[Path]) -> list[list[Path]]:
    """Put each main file together with its extra one; an extra file named alone brings its main one."""
    groups: dict[Path, list[Path]] = {}
    for path in paths:
        if not path.name:
            raise RecordingInvalid(f"{str(path)!r} names no file")
        suffix = ".jsonl.gz" if path.name.endswith(".gz") else ".jsonl"
        stem = path.name.removesuffix(suffix).removesuffix(_EXTRA)
        main = path.with_name(stem + suffix)
        files = groups.setdefault(main, [main])
        extra = path.with_name(stem + _EXTRA + suffix)
        if extra not in files and (path == extra or extra.exists()):
            files.append(extra)
    return list(groups.values())


def read_recording(paths: list[Path]) -> Recording:
    """Read a main file and, when there is one, its extra file."""
    reader = _RecordingReader(paths[0])
    for path in paths:
        reader.read(path)
    return reader.finished()


class _RecordingReader:
    """Collects the lines of a recording."""

    def __init__(self, main: Path) -> None:
        self._name = main.name.removesuffix(".gz").removesuffix(".jsonl")
        self._recording: Recording | None = None
        self._shards: dict[str, RecordedShard] = {}
        self._streams: dict[tuple[str, str], RecordedStream] = {}
        self._steps: dict[str, int] = {}
        self._refs: list[tuple[RecordedStream, int, tuple[str, str], int]] = []

    def read(self, path: Path) -> None:
        """Read one file."""
        try:
            data = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
        except (OSError, EOFError) as error:
            raise RecordingInvalid(f"{path} cannot be read: {error}") from error
        for number, line in enumerate(data.splitlines(), 1):
            try:
                self._line(json.loads(line))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise RecordingInvalid(f"{path}, line {number}: {error!r}") from error

    def finished(self) -> Recording:
        """Give the recording, with events that were recorded as references resolved."""
        if self._recording is None:
            raise RecordingInvalid(f"{self._name} has no `meta` line that names its server")
        for stream, n, target, index in self._refs:
            stream.events[n] = self._streams[target].events[index]
        self._recording.shards = self._shards
        self._recording.streams = self._streams
        return self._recording

    def _line(self, line: dict[str, Any]) -> None:
        kind, shard = line["kind"], line.get("shard", "")
        if kind == "meta":
            self._recording = Recording(self._name, Dialect.of(line["version"]))
        elif kind == "step":
            self._steps = (
                {s: time_of(t) for s, t in line["after"].items()}
                if shard == "" and (isinstance(line["after"], dict))
                else {}
            )
        elif kind == "oplog":
            self._entry(self._shard(shard), base64.b64decode(line["bson"]))
        elif kind == "preimage":
            self._pre_image(self._shard(shard), base64.b64decode(line["bson"]))
        elif kind == "stream":
            self._stream(line, shard)
        elif kind == "event":
            self._event(line, shard)
        elif kind == "batch":
            self._streams[shard, line["stream"]].batches.append(line)
        elif kind in ("resume", "resume_v0", "startAt"):
            self._streams[shard, line["stream"]].openings.append(line)

    def _shard(self, name: str) -> RecordedShard:
        return self._shards.setdefault(name, RecordedShard())

    @staticmethod
    def _entry(shard: RecordedShard, entry: bytes) -> None:
        shard.entries.append(entry)
        shard.times.append(OplogEntry(entry).time)

    @staticmethod
    def _pre_image(shard: RecordedShard, document: bytes) -> None:
        uuid, time, index, image = (
            raw.find_path(document, *path)
            for path in ((b"_id", b"nsUUID"), (b"_id", b"ts"), (b"_id", b"applyOpsIndex"), (b"preImage",))
        )
        if uuid and time and index and image:
            key = (
                raw.binary_at(document, uuid[1])[1],
                raw.int64_at(document, time[1]),
                raw.int64_at(document, index[1]),
            )
            shard.pre_images[key] = document[image[1] : image[2]]

    def _stream(self, line: dict[str, Any], shard: str) -> None:
        command = json_util.loads(json.dumps(line["cmd"]), json_options=_CANONICAL)
        self._streams[shard, line["id"]] = RecordedStream(
            id=line["id"],
            shard=shard,
            database=line.get("db") or command["$db"],
            command=command,
            error=line.get("error"),
            visible=self._steps.get(shard),
        )

    def _event(self, line: dict[str, Any], shard: str) -> None:
        stream = self._streams[shard, line["stream"]]
        if "ref" in line:
            target, index = line["ref"]
            self._refs.append((stream, line["n"], (shard, target), index))
        else:
            stream.events[line["n"]] = base64.b64decode(line["bson"])


def time_of(pair: list[int]) -> int:
    """Read a recorded time: seconds and increment."""
    return ClusterTime.of(*pair)
