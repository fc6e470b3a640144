"""A compiled pattern: searched for here when that is quick for sure, and by a process of its own otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from array import array
from typing import Final

from tailrace.engine.expression import meter, pattern_search
from tailrace.engine.expression.failures import fail
from tailrace.engine.expression.pattern_search import REPLY, REQUEST
from tailrace.engine.expression.pcre import Found, MatchFailed
from tailrace.owned import GuardedProcess

_RESULT_CODES: Final = {-47: -8, -53: -21, -63: -21}
_QUICK_LIMIT: Final = "(*LIMIT_MATCH=2000)"
_QUICK_SIZE: Final = 256
_QUICK_PLAIN_SIZE: Final = 64 * 1024
_REPEATS: Final = frozenset("*+?{(")


class Pattern:
    """A compiled pattern. What may take its time is searched for by a process of its own."""

    def __init__(self, pattern: str, options: str) -> None:
        self._pattern = pattern
        self._options = options
        self._code, self._groups = pattern_search.compile_code(_QUICK_LIMIT + pattern, options)
        self._quick_size = _QUICK_SIZE if _REPEATS & set(pattern) else _QUICK_PLAIN_SIZE

    def matches(self, text: str) -> bool:
        """Return whether the pattern is found."""
        return bool(self._search(text.encode(), finds_all=False))

    def find(self, text: str) -> Found | None:
        """Give the first match."""
        data = text.encode()
        numbers = self._search(data, finds_all=False)
        return next(iter(self._found(data, numbers)), None)

    def find_all(self, text: str) -> list[Found]:
        """Give all matches."""
        data = text.encode()
        return self._found(data, self._search(data, finds_all=True))

    def _search(self, data: bytes, *, finds_all: bool) -> list[int]:
        if len(data) <= self._quick_size:
            try:
                if finds_all:
                    return pattern_search.find_all(self._code, self._groups, data)
                return pattern_search.find(self._code, self._groups, data, 0) or []
            except pattern_search.MatchError as error:
                if error.code != -47:
                    raise MatchFailed(_RESULT_CODES.get(error.code, error.code)) from None
        status, numbers = processes.search(self._options, self._pattern, data, finds_all=finds_all)
        if status == pattern_search.TOO_MANY:
            fail(51151, "$regexFindAll: the size of buffer to store output exceeded the 64MB limit")
        if status:
            raise MatchFailed(_RESULT_CODES.get(status, status))
        return numbers

    def _found(self, data: bytes, numbers: list[int]) -> list[Found]:
        found = []
        index, counted = 0, 0
        width = 2 * self._groups
        for at in range(0, len(numbers), width):
            spans = numbers[at : at + width]
            texts = [
                None if start < 0 else data[start:end].decode()
                for start, end in zip(spans[::2], spans[1::2], strict=True)
            ]
            index += len(data[counted : spans[0]].decode())
            counted = spans[0]
            found.append(Found(texts[0] or "", index, texts[1:]))
        return found


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
