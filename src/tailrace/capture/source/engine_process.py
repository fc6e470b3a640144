"""A process that makes events from the oplog beside this one, which can then use its core for all the rest."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from collections.abc import Iterator
from struct import Struct
from typing import Final

from tailrace.capture.source.engine_program import HEAD, Kind, Order, records_from
from tailrace.capture.source.reader import ConvertedBatch
from tailrace.capture.source.source import EventBatch, UnfinishedBatch
from tailrace.driver import Batch
from tailrace.engine.stream import to_timestamp
from tailrace.owned import GuardedProcess

_int32_at = Struct("<i").unpack_from
_PIPE_BYTES: Final = 1 << 20
"""How many bytes of events the process may be ahead; what it holds beyond that is one batch."""
_SECONDS_OF_SILENCE: Final = 150.0
"""An idle stream says something every second; one whose server is away gives up after a minute or two."""
_SECONDS_TO_END: Final = 10.0


class ProcessLost(Exception):
    """The process ended or fell silent without saying why; its events up to the last batch are good."""


class EngineProcess:
    """Starts at once and is ready when Python is; then it takes one order."""

    def __init__(self) -> None:
        self._process = GuardedProcess[bytes](
            [sys.executable, "-P", "-m", "tailrace.capture.source.engine_program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pipesize=_PIPE_BYTES,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._news = select.poll()
        self._news.register(self._output, select.POLLIN)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.program_pid

    @property
    def is_ready(self) -> bool:
        """Whether it waits for its order, or ended before it could."""
        return bool(self._news.poll(0))

    def batches(self, order: Order) -> Iterator[EventBatch]:
        """Give what the stream of an order gives, and raise what it raises."""
        self._expect(Kind.READY)
        self._give(order)
        while True:
            kind, time, token, body, records = self._message()
            if kind is Kind.END:
                return
            if kind is Kind.ERROR:
                raise pickle.loads(body)
            operation_time = to_timestamp(time) if time else None
            if kind is Kind.UNFINISHED:
                yield UnfinishedBatch(token, operation_time)
                continue
            events = _cut(body)
            if records:
                yield ConvertedBatch(events, token, operation_time, records_from(records, events))
            else:
                yield Batch(events, token, operation_time)

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._input.close()
        self._output.close()
        self._process.wait(_SECONDS_TO_END)

    def _give(self, order: Order) -> None:
        try:
            self._input.write(pickle.dumps(order))
        except BrokenPipeError as error:
            raise ProcessLost("it ended before it took its order") from error

    def _expect(self, expected: Kind) -> None:
        found = self._message()[0]
        if found is not expected:
            raise ProcessLost(f"it says {found.name}, and not {expected.name}")

    def _message(self) -> tuple[Kind, int, bytes, bytes, bytes]:
        kind, time, *sizes = HEAD.unpack(self._receive(HEAD.size))
        token, body, records = map(self._receive, sizes)
        return Kind(kind), time, token, body, records

    def _receive(self, size: int) -> bytes:
        buffer = bytearray(size)
        left = memoryview(buffer)
        while left:
            if not self._news.poll(_SECONDS_OF_SILENCE * 1000):
                raise ProcessLost(f"it said nothing for {_SECONDS_OF_SILENCE:g} seconds")
            count = self._output.readinto(left)  # type: ignore[attr-defined]
            if not count:
                raise ProcessLost(f"it ended with code {self._process.wait(_SECONDS_TO_END)}")
            left = left[count:]
        return bytes(buffer)


def _cut(documents: bytes) -> list[bytes]:
    """Cut documents apart that follow each other."""
    found: list[bytes] = []
    add = found.append
    position, end = 0, len(documents)
    while position < end:
        after = position + _int32_at(documents, position)[0]
        add(documents[position:after])
        position = after
    return found
