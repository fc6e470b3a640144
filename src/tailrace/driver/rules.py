"""Which errors end a change stream and which are answered by resuming it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from pymongo.errors import ConnectionFailure, NotPrimaryError, OperationFailure, ProtocolError

from tailrace import server_codes

RESUMABLE_LABEL: Final = "ResumableChangeStreamError"
NON_RESUMABLE_LABEL: Final = "NonResumableChangeStreamError"
WIRE_VERSION_4_4: Final = 9


class Origin(Enum):
    """Where an error came from."""

    SERVER = "server"
    """A server answered with it."""
    NETWORK = "network"
    """No answer came, or none that can be read."""
    PROGRAM = "program"
    """The program, its settings or its data: trying again changes nothing."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What the rules need to know of an error."""

    origin: Origin
    code: int | None = None
    labels: frozenset[str] = frozenset()
    message: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe one of pymongo's exceptions."""
        if isinstance(error, OperationFailure | NotPrimaryError):
            answer = error.details
            details: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {}
            code = error.code if isinstance(error, OperationFailure) else details.get("code")
            labels = frozenset(details.get("errorLabels", ()))
            return cls(Origin.SERVER, code, labels, str(details.get("errmsg", error)))
        if isinstance(error, ConnectionFailure | ProtocolError):
            return cls(Origin.NETWORK, message=str(error))
        return cls(Origin.PROGRAM, message=str(error))

    @property
    def is_not_primary(self) -> bool:
        """Whether the server said that it is not the primary any more; old ones say so in words."""
        return self.code in server_codes.NOT_PRIMARY or (
            self.code is None and ("not master" in self.message or "node is recovering" in self.message)
        )

    @property
    def is_transient(self) -> bool:
        """Whether the same command may succeed later: what a resume budget waits for."""
        if self.origin is not Origin.SERVER:
            return self.origin is Origin.NETWORK
        passing = self.code in server_codes.RESUMABLE or self.code in server_codes.STARTING_UP or self.is_not_primary
        return passing or RESUMABLE_LABEL in self.labels


class ResumeRules(Enum):
    """Which failures of a getMore are answered by resuming. Failures of an aggregate never are."""

    DEFAULT = "default"
    """Version 1.6.0 for servers before 4.4, the servers' own label from 4.4 on."""
    VERSION_1_6 = "version-1.6"
    """Version 1.6.0 for all servers: everything but three codes."""
    ALLOW_LIST = "allow-list"
    """Today's specification: a list of codes before 4.4, the servers' own label from 4.4 on."""

    def resumes(self, failure: Failure, max_wire_version: int) -> bool:
        """Whether this failure of a getMore, on a server of this wire version, is resumed."""
        if failure.origin is not Origin.SERVER:
            return failure.origin is Origin.NETWORK
        if failure.code == server_codes.CURSOR_NOT_FOUND:
            return True
        if max_wire_version >= WIRE_VERSION_4_4 and self is not ResumeRules.VERSION_1_6:
            return RESUMABLE_LABEL in failure.labels
        if self is ResumeRules.ALLOW_LIST:
            return failure.code in server_codes.RESUMABLE
        return failure.is_not_primary or not (
            failure.code in server_codes.NEVER_RESUMABLE
            # 4.2 says so of errors that every resume would meet again, such as 280 and 286.
            or NON_RESUMABLE_LABEL in failure.labels
        )
