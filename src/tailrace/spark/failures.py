"""Errors on their way through Spark: explained before they enter it, found again when they come out.

Spark carries an error of a Python worker as the text of its traceback. So what a person needs (the code and the hint)
is put into that text, and `error_of` reads it back. `task` surrounds everything that runs in a Python worker.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from zipimport import zipimporter

from pymongo.errors import OperationFailure, ServerSelectionTimeoutError

from tailrace import errors, server_codes
from tailrace.capture.classifier import classify
from tailrace.errors import HistoryLost, Outcome, TailraceError
from tailrace.masking import masked, shown_failure
from tailrace.object_store import store_error

_SNAPSHOT_TOO_OLD = {"mongodb-239", "mongodb-246"}
_LOST_OFFSETS = ("KAFKA_DATA_LOSS", "OffsetOutOfRangeException", "failOnDataLoss")
_NOT_ALLOWED = ("TopicAuthorizationException", "GroupAuthorizationException")
_NO_SPACE = "No space left on device"
_NO_JVM = "JAVA_GATEWAY_EXITED"
_BAD_PROPERTY = re.compile(r"spark\.[\w.]+ should be \w+, but was [^\n]*|Could not parse Master URL: [^\n]*")
_NOTE = re.compile(r"^error\[([a-z-]+)\]: (.*?) hint: (.*)$", re.MULTILINE)


@contextmanager
def explained() -> Iterator[None]:
    """Give the errors inside a code and a hint that survive Spark.

    Causes are left out: Spark would print what the driver says of them, and servers quote tokens, which hold keys.
    """
    try:
        yield
    except TailraceError as error:
        raise _with_note(error) from None
    except Exception as error:
        ours = _translated(error)
        if ours is None:
            raise
        raise _with_note(ours) from None


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


def permanent_error(failure: BaseException) -> TailraceError | None:
    """Give the error behind a failure of Spark's own that no repetition mends, or None when one may."""
    text = str(failure)
    if any(sign in text for sign in _LOST_OFFSETS):
        return HistoryLost(
            f"the topics no longer have what comes next: {cause_of(failure)}",
            hint="Begin with a new checkpoint and --backfill, or leave the gap with fail_on_data_loss = false.",
        )
    if any(sign in text for sign in _NOT_ALLOWED):
        return errors.NotAuthorized(
            f"the user of the job lacks Read on the topics: {cause_of(failure)}",
            hint="Grant it with kafka-acls.sh; the security page has the ACLs per verb.",
        )
    if found := _BAD_PROPERTY.search(text):
        return errors.SettingsError(f"spark.config: {found[0]}", hint="Spark's configuration page has the values.")
    if _NO_JVM in text:
        return errors.SettingsError(
            "the JVM of Spark did not start; what it said is above",
            hint="Check Java, spark.driver_memory and the Java options in spark.config.",
        )
    if _NO_SPACE in text:
        return errors.DiskFull(f"a disk of the job is full: {cause_of(failure)}")
    return store_error(text)


def cause_of(failure: BaseException) -> str:
    """Give the first line of the innermost cause that an exception of Spark names."""
    innermost: BaseException = failure
    while (cause := getattr(innermost, "cause", None)) is not None:
        innermost = cause
    causes = re.findall(r"^Caused by: (.+)$", str(failure), re.MULTILINE)
    return causes[-1] if causes else str(innermost).strip().splitlines()[0]


def _translated(error: Exception) -> TailraceError | None:
    verdict = classify(error)
    if isinstance(error, ServerSelectionTimeoutError):
        return errors.ServerUnreachable(f"no MongoDB server answers: {shown_failure(error)}")
    is_final = verdict.outcome is Outcome.STOP and verdict.code not in _SNAPSHOT_TOO_OLD
    if isinstance(error, OperationFailure) and is_final:
        message = str((error.details or {}).get("errmsg", error))
        if error.code == server_codes.UNAUTHORIZED:
            return errors.NotAuthorized(message)
        return errors.StreamRefused(message, server_code=error.code)
    if verdict.outcome is Outcome.RECOVER:
        return HistoryLost(
            f"the stream cannot go on: {error}",
            hint="Start the query with a new checkpoint from a snapshot (option snapshot), and enlarge the oplog.",
        )
    if verdict.code == "network":
        return errors.ServerUnreachable(f"MongoDB does not answer: {error}")
    if verdict.code in _SNAPSHOT_TOO_OLD:
        hint = "Raise the server parameter minSnapshotHistoryWindowInSeconds, or read with more partitions."
        return errors.CaptureError(f"the snapshot's time is gone: {error}", hint=hint)
    return None


def _with_note(error: TailraceError) -> TailraceError:
    message = " ".join(masked(error.message).split())
    error.message, error.args = message, (message,)
    error.add_note(f"error[{error.code}]: {message} hint: {error.hint}")
    return error


def _every_kind(kind: type[TailraceError]) -> Iterator[type[TailraceError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _every_kind(child)


@contextmanager
def task() -> Iterator[None]:
    """Surround the work of a task."""
    with explained():
        try:
            yield
        finally:
            _forget_archives()


def _forget_archives() -> None:
    """Take archives out of the cache of importers when a task ends; an import that needs one opens it again.

    Before the next task Spark tells Python to look at its import path anew. For every archive there (Spark puts its own
    and a jar of thousands of classes on it) Python then reads all names inside, which takes 0.2 s: a fifth of the time
    of tasks that read 25,000 events. Nothing is read for an archive that is not in the cache.
    """
    for path in [path for path, finder in sys.path_importer_cache.items() if isinstance(finder, zipimporter)]:
        del sys.path_importer_cache[path]
