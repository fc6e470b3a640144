"""Every error tailrace raises, in one tree.

    TailraceError
    ├── SettingsError            settings-invalid         stop     a key, value or file of the settings
    ├── MissingExtra             extra-missing            stop     an optional dependency is not installed
    ├── ServerUnreachable        server-unreachable       retry    nobody answers at an address
    ├── BsonMalformed            bson-malformed           stop     bytes that are not BSON
    └── StandError               stand-failed             stop     a local server of the stand
        ├── DownloadFailed       download-failed          retry    a package could not be fetched
        ├── ChecksumMismatch     checksum-mismatch        stop     a package is not the one that was pinned
        └── ServerDidNotStart    server-did-not-start     stop     a process ended, or never answered

Each class has a `code` that stays the same for ever, an `outcome` that says what a program may do about it,
and a `hint` that tells a person the next step. All of them pickle, because Spark and multiprocessing
carry errors between processes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

__all__ = [
    "BsonMalformed",
    "ChecksumMismatch",
    "DownloadFailed",
    "MissingExtra",
    "Outcome",
    "ServerDidNotStart",
    "ServerUnreachable",
    "SettingsError",
    "StandError",
    "TailraceError",
]


class Outcome(StrEnum):
    """What a program may do when it meets an error."""

    RETRY = "retry"
    """The same call may succeed later, unchanged."""
    RESUME = "resume"
    """Open the stream again at the last position."""
    RECOVER = "recover"
    """History is lost: record the gap, take a snapshot, then stream."""
    STOP = "stop"
    """A person has to change something first."""


class TailraceError(Exception):
    """The root of the tree. `details` are facts for logs and for `--json`."""

    code: ClassVar[str] = "tailrace-error"
    outcome: ClassVar[Outcome] = Outcome.STOP
    default_hint: ClassVar[str] = "Run the command again with --debug to see where it comes from."

    def __init__(self, message: str, *, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint if hint is not None else self.default_hint
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.__dict__)


def _rebuild(kind: type[TailraceError], message: str, state: dict[str, Any]) -> TailraceError:
    """Make an unpickled error without calling a subclass's own constructor."""
    error = kind.__new__(kind, message)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class SettingsError(TailraceError):
    """A settings key is unknown, a value does not fit, or the file cannot be read."""

    code = "settings-invalid"
    default_hint = "Run `tailrace settings` to list every key, its type and its default."


class MissingExtra(TailraceError):
    """A feature needs an optional dependency that is not installed."""

    code = "extra-missing"
    default_hint = "Install it with: pip install 'tailrace[all]'"


class ServerUnreachable(TailraceError):
    """Nobody answers at the address that was given."""

    code = "server-unreachable"
    outcome = Outcome.RETRY
    default_hint = "Check the URI and that the server runs, or start one with `tailrace stand up`."


class BsonMalformed(TailraceError):
    """Bytes that should be BSON are not; `offset` is the first that cannot be right."""

    code = "bson-malformed"
    default_hint = "The data was damaged on its way, or is no BSON: look at the bytes there."

    def __init__(self, message: str, *, offset: int, hint: str | None = None) -> None:
        super().__init__(f"{message} (at byte {offset})", hint=hint, offset=offset)
        self.offset = offset


class StandError(TailraceError):
    """A local server could not be fetched, started or driven."""

    code = "stand-failed"
    default_hint = "Run `tailrace stand status` to see what runs and where its logs are."


class DownloadFailed(StandError):
    """A package registry did not give the package."""

    code = "download-failed"
    outcome = Outcome.RETRY
    default_hint = "Check that the package registry is reachable, then run the command again."


class ChecksumMismatch(StandError):
    """What was downloaded is not what was pinned."""

    code = "checksum-mismatch"
    default_hint = "Delete the file and try again; if it stays, the registry serves another file."


class ServerDidNotStart(StandError):
    """A server process ended early or did not answer in time."""

    code = "server-did-not-start"
    default_hint = "Read the end of its log, which the message names."
