"""The doors through which foreign bytes come in: any bytes give a value, or one of our own errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from bson.timestamp import Timestamp

from fuzz import inputs
from tailrace import raw
from tailrace.capture.formats import FormatOptions, decoder_of
from tailrace.capture.formats.stored_records import KafkaRecord
from tailrace.engine import Dialect, open_stream, parse_command
from tailrace.engine.recording import RecordedOplog, RecordedShard
from tailrace.errors import TailraceError
from tailrace.event import ChangeEvent
from tailrace.features.declaration import load_definition
from tailrace.gateway.command import Command
from tailrace.gateway.wire import message_in, read_header, unpacked_size
from tailrace.raw import extended_json
from tailrace.settings import Settings
from tailrace.token import ResumeToken, describe

_DIALECT = Dialect.of("6.0.27")
_PROPERTIES = [name for name in dir(ChangeEvent) if isinstance(getattr(ChangeEvent, name), property)]


@dataclass(frozen=True)
class Door:
    """One way in: what comes through it every day, and what is done with it."""

    name: str
    seeds: Callable[[], list[bytes]]
    enter: Callable[[bytes], None]
    is_bson: bool = False


@contextmanager
def only_our_errors() -> Iterator[None]:
    try:
        yield
    except TailraceError:
        return


def _token(data: bytes) -> None:
    for parse in (ResumeToken.parse, ResumeToken.from_hex):
        with only_our_errors():
            token = parse(data)
            assert token == ResumeToken.from_hex(token.hex, token.type_bits)
            describe(token.decode())


def _bson(data: bytes) -> None:
    with only_our_errors():
        raw.validate(data)
        decoded = extended_json.decode(data)
        extended_json.canonical(decoded)
    with only_our_errors():
        extended_json.relaxed_document(data)
    with only_our_errors():
        for kind, _, begin, end in raw.elements(data):
            with only_our_errors():
                raw.to_python(kind, data[begin:end])


def _oplog_entry(data: bytes) -> None:
    for use in ("on", "off"):
        os.environ["TAILRACE_KERNEL"] = use
        shard = RecordedShard([data], [(100 << 32) + 1])
        with only_our_errors():
            list(open_stream(_cluster_stream(), RecordedOplog(shard), _DIALECT, latest=1).next_batch())
    del os.environ["TAILRACE_KERNEL"]


@cache
def _cluster_stream() -> Any:
    stage = {"allChangesForCluster": True, "showExpandedEvents": True, "startAtOperationTime": Timestamp(100, 0)}
    command = {"aggregate": 1, "pipeline": [{"$changeStream": stage}], "cursor": {}}
    return parse_command(command, "admin", _DIALECT)


def _event(data: bytes) -> None:
    for name in _PROPERTIES:
        with only_our_errors():
            getattr(ChangeEvent(data), name)
    for format in _formats():
        with only_our_errors():
            format.records(data)


@cache
def _formats() -> list[Any]:
    made = []
    for use in ("off", "on"):
        os.environ["TAILRACE_KERNEL"] = use
        made += [FormatOptions(name, fields=["a"] if name == "flat" else ()).make() for name in inputs.FORMATS]
    del os.environ["TAILRACE_KERNEL"]
    return made


def _record(format: str, data: bytes) -> None:
    size = int.from_bytes(data[:4], "little", signed=True)
    key, value = data[4 : 4 + size], data[4 + size :]
    decoder = decoder_of(format)
    with only_our_errors():
        decoder.event(KafkaRecord("t", 0, 7, value, key))
    with only_our_errors():
        decoder.event(KafkaRecord("t", 0, 7, value, key, {"token": key, "operationType": key, "ns": key}))
    with only_our_errors():
        decoder.read(key, value)


@cache
def _file() -> Path:
    return Path(gettempdir()) / f"tailrace-fuzz-{os.getpid()}.toml"


def _settings(data: bytes) -> None:
    _file().write_bytes(data)
    with only_our_errors():
        Settings.load(_file())


def _features(data: bytes) -> None:
    _file().write_bytes(data)
    with only_our_errors():
        load_definition(str(_file()))


def _frame(data: bytes) -> None:
    if len(data) < 16:
        return  # the rest is waited for
    with only_our_errors():
        head = read_header(data[:16])
        if head.length == len(data) and unpacked_size(data) < 1 << 20:
            command = Command.parse(message_in(data), _DIALECT)
            assert isinstance(command.database, str)
            assert command.api
            assert command.fields


def _definitions() -> list[bytes]:
    return [path.read_bytes() for path in inputs.ROOT.glob("examples/*/features.toml")]


DOORS = [
    Door("token", inputs.tokens, _token),
    Door("bson", inputs.events, _bson, is_bson=True),
    Door("oplog entry", inputs.oplog_entries, _oplog_entry, is_bson=True),
    Door("change event", inputs.events, _event, is_bson=True),
    *(Door(f"{name} record", partial(inputs.records, name), partial(_record, name)) for name in inputs.FORMATS),
    Door("settings", inputs.settings_files, _settings),
    Door("feature definition", _definitions, _features),
    Door("frame", inputs.frames, _frame),
]
