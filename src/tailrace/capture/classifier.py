"""What to do about an error: retry, resume, recover or stop. The one place of the product that decides it.

The rules are data (`error_rules`), so that the table in the documentation can be held against them. An error that
no rule knows is `stop`: going on after something unknown is how events get lost.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any

from pymongo.errors import ConnectionFailure, NotPrimaryError, OperationFailure, ProtocolError, PyMongoError

from tailrace import server_codes
from tailrace.capture.error_rules import (
    DISK_ERRORS,
    DISK_RULE,
    KAFKA_RULES,
    LIBRARY_RULES,
    NETWORK,
    RESUMABLE_LABEL,
    SERVER_RULES,
    TOKEN_NOT_FOUND,
    UNKNOWN,
    Remedy,
    Rule,
    Verdict,
    every_rule,
)
from tailrace.errors import Outcome, TailraceError

__all__ = ["Outcome", "Remedy", "Rule", "Verdict", "classify", "every_rule"]

_BY_SERVER_CODE = {code: rule for rule in SERVER_RULES for code in rule.codes}
_BY_KAFKA_NAME = {name: rule for rule in KAFKA_RULES for name in rule.names}
_BY_CLASS = {name: rule for rule in LIBRARY_RULES for name in rule.names}


def classify(error: BaseException) -> Verdict:
    """Say what is done about an error."""
    if isinstance(error, TailraceError):
        return _of_tailrace(error)
    if isinstance(error, PyMongoError):
        return _of_pymongo(error)
    kafka = _kafka_error(error)
    if kafka is not None:
        return _of_kafka(kafka)
    for kind in type(error).__mro__:
        for name in (f"{kind.__module__}.{kind.__qualname__}", kind.__qualname__):
            if name in _BY_CLASS:
                return _BY_CLASS[name].applied(_dashed(kind.__qualname__))
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return DISK_RULE.applied(errno.errorcode[error.errno].lower())
    return UNKNOWN.applied("unexpected")


def _of_tailrace(error: TailraceError) -> Verdict:
    server_code = getattr(error, "server_code", None)
    if server_code in _BY_SERVER_CODE:
        # Where the server's answer has a rule, our own form of it means the same.
        return _of_server(server_code, frozenset(getattr(error, "labels", ())), error.message)
    return Verdict(error.outcome, error.code, error.message)


def _of_pymongo(error: PyMongoError) -> Verdict:
    if isinstance(error, OperationFailure | NotPrimaryError):
        details: Any = error.details
        answer: Mapping[str, Any] = details if isinstance(details, Mapping) else {}
        code = (
            error.code if isinstance(error, OperationFailure) else answer.get("code", server_codes.NOT_WRITABLE_PRIMARY)
        )
        return _of_server(code, frozenset(answer.get("errorLabels", ())), str(answer.get("errmsg", error)))
    if isinstance(error, ConnectionFailure | ProtocolError):
        return NETWORK.applied("network")
    return UNKNOWN.applied(_dashed(type(error).__name__))


def _of_server(code: int | None, labels: frozenset[str], message: str) -> Verdict:
    # 6.0.5 says "cannot resume stream; the resume token was not found. {_data: ...}", 4.2 "resume of change stream
    # was not possible, as the resume token was not found"; 280 for other reasons is a pipeline that ruins `_id`.
    if code == 280 and "resume token was not found" in message:
        return TOKEN_NOT_FOUND.applied("mongodb-280")
    known = _BY_SERVER_CODE.get(code) if code is not None else None
    if known is not None:
        return known.applied(f"mongodb-{code}")
    if "ResumableChangeStreamError" in labels:
        return RESUMABLE_LABEL.applied(f"mongodb-{code}")
    return UNKNOWN.applied("mongodb" if code is None else f"mongodb-{code}")


def _kafka_error(error: BaseException) -> Any:
    """Give confluent-kafka's error value, found by name so that the package need not be installed."""
    if type(error).__name__ == "KafkaException" and error.args:
        return error.args[0]
    return error if type(error).__name__ == "KafkaError" else None


def _of_kafka(error: Any) -> Verdict:
    name = error.name()
    code = f"kafka-{_dashed(name)}"
    rule = _BY_KAFKA_NAME.get(name)
    if rule is not None and rule.verdict is Outcome.STOP:
        return rule.applied(code)
    if error.txn_requires_abort():
        return Verdict(Outcome.RESUME, code, "the transaction has to be aborted; the batch is sent again")
    if error.fatal():
        return Verdict(Outcome.STOP, code, "this producer can send nothing more; a new process can")
    if rule is not None:
        return rule.applied(code)
    if error.retriable():
        return Verdict(Outcome.RETRY, code, "the broker says that it may be tried again")
    return UNKNOWN.applied(code)


def _dashed(name: str) -> str:
    """Give a code's spelling of a class or constant name."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", name.strip("_")).lower()
