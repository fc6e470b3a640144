"""Records as lines of JSON, in a file or on standard output."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import orjson

from tailrace.capture.record import Record
from tailrace.capture.sinks.sink import Sink
from tailrace.errors import SettingsError, SinkUnavailable


class JsonLinesSink(Sink):
    """One object a line, as `record_json` writes it.

    In a file, what is acknowledged is on the disk; a line that a crash cut off is removed when the file is opened
    again. Lines are written when they are added, and nothing is left to be written by a later `close`.
    """

    def __init__(self, path: Path | None, *, is_json: bool = True) -> None:
        self._path = path
        self._is_json = is_json
        self._file: BinaryIO | None = None
        self._added = 0
        self._acknowledged = 0

    def setup(self) -> None:
        """Open the file, which is made if it is missing."""
        with self._disk_errors():
            if self._path is None:
                self._file = sys.stdout.buffer
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _cut_torn_line(self._path)
            self._file = self._path.open("ab")

    def add(self, records: Sequence[Record]) -> int:
        """Write the lines."""
        with self._disk_errors():
            file = self._open_file()
            file.write(b"".join([record_json(record, is_json=self._is_json) + b"\n" for record in records]))
            file.flush()
        self._added += len(records)
        return self._added

    def acknowledged(self) -> int:
        """Sync what was written, if anything was."""
        if self._acknowledged < self._added:
            with self._disk_errors():
                if self._path is not None:
                    os.fsync(self._open_file().fileno())
            self._acknowledged = self._added
        return self._acknowledged

    def flush(self, timeout: float) -> int:
        """Sync everything."""
        return self.acknowledged()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None and self._path is not None:
            with self._disk_errors():
                self._file.close()
        self._file = None

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            raise SinkUnavailable("the sink is closed")
        return self._file

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise  # whoever read our standard output is gone: there is nobody to try again for
        except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
            message = f"capture.sink: {self._path} cannot be a file: {error.strerror}"
            raise SettingsError(message, hint="Name a file, such as file:out.jsonl.") from None
        except OSError as error:
            raise SinkUnavailable(f"cannot write to {self._path or 'standard output'}: {error.strerror}") from error


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - 65536)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                file.truncate(begin + newline + 1)
                return
            end = begin
        file.truncate(0)


def record_json(record: Record, *, is_json: bool) -> bytes:
    """Write namespace, operation, token, cluster time, key and value.

    Keys and values that are JSON are in it as they are, others (`bson`) as base64; a tombstone's value is null.
    """
    headers = dict(record.headers)
    return orjson.dumps(
        {
            "ns": record.namespace,
            "op": record.operation,
            "token": headers.get("token", b"").decode(),
            "clusterTime": headers.get("clusterTime", b"").decode(),
            "key": _part(record.key, is_json),
            "value": _part(record.value, is_json),
        }
    )


def _part(data: bytes | None, is_json: bool) -> object:
    if data is None:
        return None
    return orjson.Fragment(data) if is_json else base64.b64encode(data).decode()
