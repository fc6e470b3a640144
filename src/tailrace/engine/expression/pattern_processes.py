"""A few processes that search long texts, so that a search holds back nobody and can be ended when its time is up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from array import array
from typing import Final

from tailrace.engine.expression import meter, pattern_search
from tailrace.engine.expression.pattern_search import REPLY, REQUEST
from tailrace.owned import GuardedProcess

_PROCESSES: Final = 4
_LONGEST: Final = 60.0
"""Seconds of a search where a stream is given no limit."""


class _Process:
    """One process, which ends when its input does."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._process: GuardedProcess[bytes] = GuardedProcess(
            [sys.executable, "-P", pattern_search.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, seconds: float, options: str, pattern: str, text: bytes, *, finds_all: bool) -> tuple[int, list[int]]:
        """Search; EOFError when the process has ended, by its timer or otherwise."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        asked = f"{options}\0{pattern}".encode()
        try:
            requests.write(REQUEST.pack(seconds, finds_all, len(asked), len(text)) + asked)
            requests.write(text)
            requests.flush()
        except BrokenPipeError:
            raise EOFError from None
        head = replies.read(REPLY.size)
        if len(head) < REPLY.size:
            raise EOFError
        status, count, spent = REPLY.unpack(head)
        meter.charge(spent)
        numbers = array("q")
        numbers.frombytes(replies.read(count * numbers.itemsize))
        return status, numbers.tolist()

    def close(self) -> None:
        """End it and wait until it has."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass
        self._process.kill()
        self._process.wait()


class PatternProcesses:
    """Hands searches to processes that are started when they are needed."""

    def __init__(self) -> None:
        self._idle: list[_Process] = []
        self._lock = threading.Lock()
        self._capacity = threading.Semaphore(_PROCESSES)

    def search(self, options: str, pattern: str, text: bytes, *, finds_all: bool) -> tuple[int, list[int]]:
        """Search within the time that the meter has left; fails as an operation that has used it up."""
        with self._capacity:
            process = self._take()
            seconds = max(0.001, min(_LONGEST, meter.seconds_left()))
            try:
                answer = process.ask(seconds, options, pattern, text, finds_all=finds_all)
            except EOFError:
                process.close()
                meter.out_of_time()
                raise
            except BaseException:
                process.close()
                raise
            with self._lock:
                self._idle.append(process)
            return answer

    def _take(self) -> _Process:
        """Give an idle process; those of a process that this one was forked from are not ours."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.owner == os.getpid():
                    return process
        return _Process()


processes: Final = PatternProcesses()
