"""Run recordings through the engine, and compare everything with what the servers gave."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import bson
from bson import json_util
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.engine.event import Event
from tailrace.engine.options import parse_command
from tailrace.engine.recording import RecordedOplog, RecordedStream, Recording, time_of
from tailrace.engine.stream import FIRST_BATCH, EngineStream, open_stream
from tailrace.errors import BsonMalformed, ChangeStreamError
from tailrace.token.resume_token import ResumeToken

READS_DOCUMENTS: Final = "reads live documents"
_CLIENT_MISTAKES: Final = frozenset({50738})
"""Errors that end the reading and say nothing about the stream: a getMore in another session."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A recorded line that the engine does not agree with."""

    recording: str
    stream: str
    what: str
    server: str
    engine: str

    def __str__(self) -> str:
        return f"{self.recording} {self.stream}: {self.what}\n  server: {self.server}\n  engine: {self.engine}"


@dataclass(slots=True)
class StreamResult:
    """How one stream compared. Everything is counted in lines of the recording."""

    recording: str
    stream: str
    identical: int = 0
    differences: list[Difference] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    operation_types: Counter[str] = field(default_factory=Counter)
    """Events that are the same, by type."""

    def compare(self, what: str, server: Any, engine: Any, show: Callable[[Any], str] = str) -> bool:
        """Count one line as the same or as a difference."""
        if server == engine:
            self.identical += 1
            return True
        shown = show(server), show(engine)
        self.differences.append(Difference(self.recording, self.stream, what, *shown))
        return False


def replay(recording: Recording) -> Iterator[StreamResult]:
    """Replay every stream of a recording."""
    for stream in recording.streams.values():
        yield StreamReplay(recording, stream).run()


class StreamReplay:
    """Replays one stream: as it was read, and from every place where it was resumed."""

    def __init__(self, recording: Recording, stream: RecordedStream) -> None:
        self._recording = recording
        self._stream = stream
        self._shard = recording.shards[stream.shard]
        self._result = StreamResult(recording.name, stream.name)
        self._numbers = {token.data: n for n, event in stream.events.items() if (token := raw.field(event, b"_id"))}

    def run(self) -> StreamResult:
        """Compare everything that was recorded of the stream."""
        stream, result = self._stream, self._result
        if _reads_documents(stream.command):
            result.skipped[READS_DOCUMENTS] += 1 + len(stream.events) + len(stream.batches) + len(stream.openings)
            return result
        self._compare_reading()
        for line in stream.openings:
            self._compare_opening(line)
        return result

    # --- the stream as it was read

    def _compare_reading(self) -> None:
        events: list[Event] = []
        error: ChangeStreamError | None = None
        try:
            self._read_batches(events)
        except ChangeStreamError as raised:
            error = raised
        self._compare_error(error)
        self._compare_events(events)

    def _read_batches(self, events: list[Event]) -> None:
        """Read as the recording client did: as much at a time, of as much of the oplog as there was."""
        stream = self._stream
        oplog = RecordedOplog(self._shard, stream.visible)
        opened: EngineStream | None = None
        for line in stream.batches:
            if "opTime" in line:
                oplog.visible = time_of(line["opTime"])
            if opened is None:
                opened = self._open(stream.command, oplog)
                limit = stream.command["cursor"].get("batchSize", FIRST_BATCH)
            else:
                limit = _get_more_size(stream)
            batch = opened.next_batch(limit)
            events += batch
            self._result.compare(
                f"batch up to event {line['upto']}",
                _batch_summary(line["n"], json_util.loads(json.dumps(line["pbrt"])), line["alive"]),
                _batch_summary(len(batch), opened.post_batch_resume_token.to_document(), not opened.is_closed),
            )
        if opened is None:
            self._open(stream.command, oplog).next_batch(FIRST_BATCH)

    def _open(self, command: dict[str, Any], oplog: RecordedOplog) -> EngineStream:
        dialect = self._recording.dialect
        spec = parse_command(command, self._stream.database, dialect)
        return open_stream(spec, oplog, dialect, latest=oplog.visible, images=self._shard)

    def _compare_error(self, error: ChangeStreamError | None) -> None:
        recorded = self._stream.error
        if recorded is not None and recorded["code"] in _CLIENT_MISTAKES:
            recorded = None
        server = (
            "no error"
            if recorded is None
            else _error_summary(recorded["code"], recorded["codeName"], recorded["labels"], recorded["msg"])
        )
        engine = (
            "no error"
            if error is None
            else _error_summary(error.server_code, error.server_code_name, list(error.labels), error.message)
        )
        self._result.compare("error", server, engine)

    def _compare_events(self, events: list[Event]) -> None:
        recorded = self._stream.events
        for n in range(max(len(events), len(recorded))):
            server = recorded.get(n)
            engine = events[n].raw if n < len(events) else None
            if self._result.compare(f"event {n}", server, engine, show_event) and n < len(events):
                self._result.operation_types[events[n].operation_type] += 1

    # --- where it was resumed

    def _compare_opening(self, line: dict[str, Any]) -> None:
        """Open the stream where the recording client did; the line tells which event came first."""
        found: Event | None = None
        error: str | None = None
        oplog = RecordedOplog(self._shard, self._stream.visible)
        try:
            stream = self._open(self._command_from(line), oplog)
            found = next(iter(stream.next_batch(1)), None)
        except ChangeStreamError as raised:
            error = str(raised)
        what = f"{line['kind']} {line.get('mode', '')} {line.get('k', line.get('ts'))}"
        expected = line["next"]
        index = None if found is None else self._index_of(found)
        if line["err"] is not None or error is not None or index is None or index != expected:
            self._result.compare(what, (expected, line["err"]), (index, error))
        else:
            self._result.compare(what, self._stream.events[index], found and found.raw, show_event)

    def _index_of(self, event: Event) -> int | None:
        """Find an event by its token, as the recording client did.

        Resumed with a token of version 0, a server gives the rest of a transaction tokens of version 0
        too: neither finds those.
        """
        return self._numbers.get(event.token)

    def _command_from(self, line: dict[str, Any]) -> dict[str, Any]:
        command = self._stream.command
        options = dict(command["pipeline"][0]["$changeStream"])
        for name in ("resumeAfter", "startAfter", "startAtOperationTime"):
            options.pop(name, None)
        if line["kind"] == "startAt":
            options["startAtOperationTime"] = Timestamp(*line["ts"])
        elif line["kind"] == "resume_v0":
            options["resumeAfter"] = ResumeToken.parse(json_util.loads(json.dumps(line["token"]))).to_document()
        else:
            token = raw.field(self._stream.events[line["k"]], b"_id")
            options[line["mode"]] = {} if token is None else bson.decode(token.data)
        return {**command, "pipeline": [{"$changeStream": options}, *command["pipeline"][1:]]}


def _reads_documents(command: dict[str, Any]) -> bool:
    options = command["pipeline"][0]["$changeStream"]
    return isinstance(options, dict) and options.get("fullDocument") == "updateLookup"


def _get_more_size(stream: RecordedStream) -> int | None:
    """Tell how many events the client asked for at a time: the command says, or the batches show."""
    asked = stream.command["cursor"].get("batchSize")
    if asked is not None:
        return int(asked)
    sizes = Counter(line["n"] for line in stream.batches[1:] if line["n"])
    largest = max(sizes, default=0)
    is_limit = largest > 0 and sizes[largest] > 1 and sizes[largest] * 2 >= sizes.total()
    return largest if is_limit else None


def _batch_summary(n: int, token: dict[str, Any], alive: bool) -> str:
    return f"{n} events, postBatchResumeToken {json_util.dumps(token)}, {'open' if alive else 'closed'}"


def _error_summary(code: int, name: str, labels: list[str], message: str) -> str:
    """Give what is stable of an error: the message up to the first document in it."""
    return f"{code} {name} {labels} {message.split('{')[0].rstrip()}"


def show_event(event: bytes | None) -> str:
    """Write an event for people, as canonical Extended JSON."""
    if event is None:
        return "nothing"
    try:
        return json_util.dumps(raw.to_python(raw.DOCUMENT, event), json_options=json_util.CANONICAL_JSON_OPTIONS)
    except (BsonMalformed, ValueError):
        return event.hex()
