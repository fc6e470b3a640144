"""Searching with PCRE2, under the limits that MongoDB compiles into its PCRE: used here, and as a process of its own.

The binding keeps the interpreter's lock during a search, and the limits hold for each place where a match may begin, so
that a search of a long text can take its time: those run in a process (`pattern.py`), which ends itself when its
time is up. This module imports nothing of the package, so that the process starts quickly.
"""

from __future__ import annotations

import signal
import struct
import sys
import time
from array import array
from functools import lru_cache
from typing import Any, BinaryIO, Final

from pcre2 import _cy

LIMITS: Final = "(*LIMIT_MATCH=200000)(*LIMIT_DEPTH=4001)"
"""MongoDB's; PCRE2 counts one level more than the older PCRE. A pattern may lower them, but not raise them."""
REQUEST: Final = struct.Struct("<d?II")
"""Seconds, whether all matches are asked for, the sizes of options and pattern, and of the text."""
REPLY: Final = struct.Struct("<iId")
"""0 or the code of an error, how many numbers follow, and the processor time that the search took."""
_FLAGS: Final = {"i": 0x8, "m": 0x400, "s": 0x20, "x": 0x80}
_UTF: Final = 0x80000
_NOT_THE_SERVERS: Final = 0x20000 | 0x2 | 0x100000
"""What the binding adds: Unicode classes, `\\u`, and no `\\C`."""
_NO_UTF_CHECK: Final = 0x40000000
_CONTEXT: Final = _cy.create_match_context()
_MAX_FOUND: Final = 64 * 1024 * 1024
_FOUND_SIZE: Final = 300
"""About what servers count for a match, besides its text."""
TOO_MANY: Final = -51151

PatternError = _cy.PatternError
MatchError = _cy.LibraryError


def compile_code(pattern: str, options: str) -> tuple[Any, int]:
    """Compile a pattern; gives its code, and how many numbers a match has."""
    flags = _UTF
    for letter in options:
        flags |= _FLAGS.get(letter, 0)
    code = _cy.compile((LIMITS + pattern).encode(), flags, _NOT_THE_SERVERS)
    return code, _cy.pattern_capture_count(code) + 1


def find(code: Any, groups: int, text: bytes, start: int) -> list[int] | None:
    """Give the beginning and the end of the first match and of its groups, in bytes; -1 where a group has none."""
    data = _cy.match(code, text, len(text), start, _CONTEXT, _NO_UTF_CHECK)[0]
    if data is None:
        return None
    return [
        index_of_match for n in range(groups) for index_of_match in _cy.match_substring_span_bynumber(data, text, n)
    ]


def find_all(code: Any, groups: int, text: bytes) -> list[int]:
    """Give all matches one after another; behind an empty one the search goes on a character later."""
    found: list[int] = []
    start, size = 0, 0
    while True:
        match = find(code, groups, text, start)
        if match is None:
            return found
        found += match
        size += _FOUND_SIZE + match[1] - match[0]
        if size > _MAX_FOUND:
            raise TooManyFound
        start = match[1]
        if match[0] == match[1]:
            start += 1
            while start < len(text) and text[start] & 0xC0 == 0x80:
                start += 1
        if start >= len(text):
            return found


class TooManyFound(Exception):
    """The matches do not fit into the buffer that servers have for them."""


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer until nobody asks any more; whoever takes too long is ended by its own timer."""
    known = lru_cache(maxsize=64)(compile_code)
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        seconds, finds_all, pattern_size, text_size = REQUEST.unpack(head)
        options, _, pattern = requests.read(pattern_size).decode().partition("\0")
        text = requests.read(text_size)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        status, numbers, before = 0, array("q"), time.process_time()
        try:
            code, groups = known(pattern, options)
            numbers.extend(find_all(code, groups, text) if finds_all else find(code, groups, text, 0) or ())
        except MatchError as error:
            status = error.code
        except TooManyFound:
            status = TOO_MANY
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(REPLY.pack(status, len(numbers), time.process_time() - before))
        replies.write(numbers.tobytes())
        replies.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(sys.stdin.buffer, sys.stdout.buffer)
