"""A compiled pattern: searched for here when that is quick for sure, and by a process of its own otherwise."""

from __future__ import annotations

from typing import Final

from tailrace.engine.expression import pattern_search
from tailrace.engine.expression.failures import fail
from tailrace.engine.expression.pattern_processes import processes
from tailrace.engine.expression.pcre import Found, MatchFailed

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
        """Tell whether the pattern is found."""
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
