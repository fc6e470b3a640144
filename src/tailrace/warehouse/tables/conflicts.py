"""Writing to a table that others write to as well: what they did meanwhile is a conflict, and it is done again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError

_CONFLICTS: Final = ("ValidationException", "CommitFailedException")
"""Those of Iceberg."""
_TRIES: Final = 5


class Conflict(Exception):
    """Somebody else has changed the table since it was planned; nothing was committed."""


@contextmanager
def conflicts(names: Collection[str] = _CONFLICTS) -> Iterator[None]:
    """Raise Conflict for the exceptions of a table format that say so."""
    try:
        yield
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() in names:
            raise Conflict(str(error.java_exception.getMessage())) from error
        raise


def write_once(
    write: Callable[[], None], is_there: Callable[[], bool], refresh: Callable[[], None] = lambda: None
) -> None:
    """Write a batch to a table that does not have it yet.

    When somebody else changed the table meanwhile it is written on top of that, unless it was this very batch: another
    job with the same checkpoint may be ahead, and what this one has to say would bring back what is deleted since.
    """
    for left in reversed(range(_TRIES)):
        if is_there():
            return
        try:
            write()
            return
        except Conflict:
            if not left:
                raise
            refresh()
