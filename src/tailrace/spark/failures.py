"""Errors on their way through Spark: explained before they enter it, found again when they come out.

Spark carries an error of a Python worker as the text of its traceback. So what a person needs (the code and the hint)
is put into that text, and `error_of` reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tailrace import errors
from tailrace.capture.classifier import classify
from tailrace.errors import HistoryLost, Outcome, TailraceError

_SNAPSHOT_TOO_OLD = {"mongodb-239", "mongodb-246"}
_NOTE = re.compile(r"^error\[([a-z-]+)\]: (.*?) hint: (.*)$", re.MULTILINE)


@contextmanager
def explained() -> Iterator[None]:
    """Give the errors inside a code and a hint that survive Spark."""
    try:
        yield
    except TailraceError as error:
        raise _with_note(error) from error.__cause__
    except Exception as error:
        ours = _translated(error)
        if ours is None:
            raise
        raise _with_note(ours) from error


def error_of(failure: BaseException) -> TailraceError | None:
    """Give the error of ours inside an exception of Spark, or None when there is none."""
    found = _NOTE.search(str(failure))
    if found is None:
        return None
    code, message, hint = found.groups()
    kind = next((kind for kind in _every_kind(TailraceError) if kind.code == code), TailraceError)
    error = kind.__new__(kind, message)
    TailraceError.__init__(error, message, hint=hint)
    return error


def _translated(error: Exception) -> TailraceError | None:
    verdict = classify(error)
    if verdict.outcome is Outcome.RECOVER:
        return HistoryLost(
            f"the stream cannot go on: {error}",
            hint="Start the query with a new checkpoint from a snapshot (option snapshot), and enlarge the oplog.",
        )
    if verdict.code in _SNAPSHOT_TOO_OLD:
        hint = "Raise the server parameter minSnapshotHistoryWindowInSeconds, or read with more partitions."
        return errors.CaptureError(f"the snapshot's time is gone: {error}", hint=hint)
    return None


def _with_note(error: TailraceError) -> TailraceError:
    message = " ".join(error.message.split())
    error.add_note(f"error[{error.code}]: {message} hint: {error.hint}")
    return error


def _every_kind(kind: type[TailraceError]) -> Iterator[type[TailraceError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _every_kind(child)
