"""The table of all error codes, made of the exception tree."""

from __future__ import annotations

from collections.abc import Iterator

import prose

from tailrace.cli.app import exit_code_of
from tailrace.errors import TailraceError


def table() -> str:
    """Make the table, in the order of the tree."""
    rows = [
        (f"`{kind.code}`", kind.outcome.value, str(_exit_code(kind)), _cause(kind), prose.cell(kind.default_hint))
        for kind in kinds()
    ]
    return prose.table(("code", "outcome", "exit code", "cause", "next step"), rows)


def kinds(above: type[TailraceError] = TailraceError) -> Iterator[type[TailraceError]]:
    """Give every error of the tree, each before those below it."""
    for kind in above.__subclasses__():
        if kind.__module__ == TailraceError.__module__:
            yield kind
            yield from kinds(kind)


def _exit_code(kind: type[TailraceError]) -> int:
    error = TailraceError.__new__(kind)
    return exit_code_of(error)


def _cause(kind: type[TailraceError]) -> str:
    return prose.cell((kind.__doc__ or "").split("\n\n")[0])
