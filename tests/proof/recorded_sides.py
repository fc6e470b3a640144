"""The two sides of a recorded stream: what the server gave, and the engine on the recorded oplog, maybe mutated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import bson

from tailrace.capture.source.source import Start
from tailrace.driver import Batch, token_of
from tailrace.engine.dialect import Dialect
from tailrace.engine.event import Event
from tailrace.engine.options import parse_command, read_token
from tailrace.engine.recording import RecordedOplog, Recording, read_recording
from tailrace.engine.stream import EngineStream, open_stream
from tailrace.event import ChangeEvent
from tailrace.token import ResumeToken

SERVER_BATCH, ENGINE_BATCH, ENTRIES_AT_ONCE = 5, 7, 11
Mutation = Callable[[bytes], bytes | None]


@lru_cache
def recording_of(folder: Path, version: str) -> Recording:
    return read_recording([folder / f"{version}.jsonl.gz", folder / f"{version}.extra.jsonl.gz"])


@dataclass(slots=True)
class ServerSide:
    """The server's stream as it was recorded; empty batches bring marks, as on a server with other work."""

    events: Sequence[bytes]
    version: int
    start: Start
    opened: int = 0

    def open(self, start: Start) -> ServerSide:
        self.opened += 1
        return replace(self, start=start)

    def batches(self) -> Iterator[Batch]:
        left = [event for event in self.events if _is_behind(event, self.start)]
        for begin in range(0, len(left), SERVER_BATCH):
            part = left[begin : begin + SERVER_BATCH]
            last = ChangeEvent(part[-1]).token_time
            yield Batch(part, token_of(part[-1]), None)
            following = left[begin + SERVER_BATCH :]
            if not following or ChangeEvent(following[0]).token_time > last:
                yield Batch([], ResumeToken.high_water_mark(last.next.timestamp, self.version).to_bson(), None)

    def close(self) -> None:
        return


class EngineSide:
    """The engine on the recorded oplog; `mutate` is applied to its events, None loses one."""

    def __init__(
        self, recording: Recording, stream: str, dialect: Dialect | None = None, mutate: Mutation = lambda e: e
    ) -> None:
        self._recording = recording
        self._stream = recording.streams["", stream]
        self._dialect = dialect or recording.dialect
        self._mutate = mutate
        self._shard = recording.shards[""]
        self.mutated = 0

    def open(self, start: Start) -> _OpenEngine:
        spec = parse_command(self._stream.command, self._stream.database, self._dialect)
        if start.token is not None:
            token = bson.decode(start.token)
            options = replace(spec.options, start_after=ResumeToken.parse(token), start_at_operation_time=None)
            spec = replace(spec, options=options, start_token=read_token(options, self._dialect))
        elif start.time is not None:
            spec = replace(spec, options=replace(spec.options, start_at_operation_time=start.time))
        oplog = RecordedOplog(self._shard, self._shard.times[0])
        stream = open_stream(spec, oplog, self._dialect, latest=self._shard.times[-1], images=self._shard)
        return _OpenEngine(self, stream, oplog, self._shard.times)

    def made(self, events: Sequence[Event]) -> list[bytes]:
        found = []
        for event in events:
            changed = self._mutate(event.raw)
            self.mutated += changed != event.raw
            if changed is not None:
                found.append(changed)
        return found


class _OpenEngine:
    """One pass over the oplog, which is written while it is read."""

    def __init__(self, side: EngineSide, stream: EngineStream, oplog: RecordedOplog, times: Sequence[int]) -> None:
        self._side, self._stream, self._oplog, self._times = side, stream, oplog, times

    def batches(self) -> Iterator[Batch]:
        stream = self._stream
        for visible in [*self._times[::ENTRIES_AT_ONCE], self._times[-1]]:
            if stream.is_closed:
                return
            self._oplog.visible = visible
            found = stream.next_batch(ENGINE_BATCH)
            while found:
                yield Batch(self._side.made(found), stream.post_batch_resume_token.to_bson(), None)
                found = stream.next_batch(ENGINE_BATCH)
            yield Batch(self._side.made(found), stream.post_batch_resume_token.to_bson(), None)

    def close(self) -> None:
        self._stream.close()


def _is_behind(event: bytes, start: Start) -> bool:
    if start.token is not None:
        return ResumeToken.parse(token_of(event)) > ResumeToken.parse(start.token)
    return start.time is None or ChangeEvent(event).token_time >= int(start.time.time) << 32 | int(start.time.inc)
