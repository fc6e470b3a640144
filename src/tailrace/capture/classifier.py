"""What to do about an error: retry, resume, recover or stop. The one place of the product that decides it.

The rules are data (`SERVER_RULES` and those below), so that the table in the documentation can be held against them.
An error that no rule knows is `stop`: going on after something unknown is how events get lost.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pymongo.errors import ConnectionFailure, NotPrimaryError, OperationFailure, ProtocolError, PyMongoError

from tailrace import server_codes
from tailrace.errors import Outcome, TailraceError


class Remedy(StrEnum):
    """What a resume has to do differently, where the same again would fail again."""

    NONE = "none"
    START_AT_TIME = "start-at-time"
    """Open at the stored cluster time instead of the token, and drop what was delivered before."""
    READ_SMALLER = "read-smaller"
    """Read the one event without its images: it is over 16 MB."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an error means: the outcome, a stable code for logs and metrics, and the reason in words."""

    outcome: Outcome
    code: str
    why: str
    remedy: Remedy = Remedy.NONE


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table: which errors, and what is done about them."""

    origin: str
    names: tuple[str, ...]
    verdict: Outcome
    why: str
    remedy: Remedy = Remedy.NONE
    codes: tuple[int, ...] = ()

    def applied(self, code: str) -> Verdict:
        """Give the verdict for an error that has this stable code."""
        return Verdict(self.verdict, code, self.why, self.remedy)


def _server(outcome: Outcome, why: str, codes: Iterable[int], remedy: Remedy = Remedy.NONE) -> Rule:
    named = server_codes.named(codes)
    return Rule("MongoDB", tuple(named.values()), outcome, why, remedy, tuple(named))


SERVER_RULES: tuple[Rule, ...] = (
    _server(
        Outcome.RECOVER, "the oplog begins after the position: what lies between is lost", server_codes.HISTORY_LOST
    ),
    _server(
        Outcome.RESUME,
        "the server does not understand the token, as after a downgrade: the stored cluster time is used instead",
        server_codes.TOKEN_NOT_UNDERSTOOD,
        Remedy.START_AT_TIME,
    ),
    _server(
        Outcome.RESUME,
        "one event is over 16 MB: it is read again without its images",
        {server_codes.BSON_OBJECT_TOO_LARGE},
        Remedy.READ_SMALLER,
    ),
    _server(Outcome.RESUME, "the cursor is gone, the position is not", server_codes.CURSOR_GONE),
    _server(Outcome.RETRY, "the server or its primary is changing, or cannot be reached now", server_codes.PASSING),
    _server(Outcome.STOP, "the user, the pipeline or the options have to be changed first", server_codes.FOR_A_PERSON),
)

TOKEN_NOT_FOUND = Rule(
    "MongoDB",
    ("ChangeStreamFatalError, token not found",),
    Outcome.RECOVER,
    "the token's event is not in the stream any more: what came after it is unknown",
    codes=(server_codes.CHANGE_STREAM_FATAL_ERROR,),
)
RESUMABLE_LABEL = Rule(
    "MongoDB",
    ("any, with the label ResumableChangeStreamError",),
    Outcome.RESUME,
    "the server says itself that the stream can be resumed",
)
NETWORK = Rule(
    "MongoDB", ("ConnectionFailure", "ProtocolError"), Outcome.RETRY, "no answer came, or none that can be read"
)

KAFKA_RULES: tuple[Rule, ...] = (
    Rule(
        "Kafka",
        ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "TRANSACTION_COORDINATOR_FENCED"),
        Outcome.STOP,
        "another producer with this name has taken over",
    ),
    Rule(
        "Kafka",
        (
            "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_RESOLVE", "_RETRY",
            "_QUEUE_FULL", "_WAIT_COORD", "_INTR", "REQUEST_TIMED_OUT", "COORDINATOR_NOT_AVAILABLE",
            "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE",
            "BROKER_NOT_AVAILABLE", "NETWORK_EXCEPTION", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
            "CONCURRENT_TRANSACTIONS", "THROTTLING_QUOTA_EXCEEDED", "KAFKA_STORAGE_ERROR",
        ),
        Outcome.RETRY,
        "the broker is away, slow or changing its leader",
    ),
    Rule(
        "Kafka",
        (
            "_MSG_TIMED_OUT", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "_STATE", "TRANSACTION_ABORTABLE", "INVALID_TXN_STATE",
            "INVALID_PRODUCER_ID_MAPPING", "UNKNOWN_PRODUCER_ID", "OUT_OF_ORDER_SEQUENCE_NUMBER",
        ),
        Outcome.RESUME,
        "the batch did not arrive as a whole: the transaction is aborted and the stream read again from the position",
    ),
    Rule(
        "Kafka",
        (
            "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            "SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION", "_SSL", "_INVALID_ARG", "POLICY_VIOLATION",
            "INVALID_CONFIG", "TOPIC_EXCEPTION",
        ),
        Outcome.STOP,
        "rights, certificates or settings have to be changed first",
    ),
)  # fmt: skip

LIBRARY_RULES: tuple[Rule, ...] = (
    Rule("PostgreSQL", ("psycopg.OperationalError",), Outcome.RETRY, "the database is away, or starts again"),
    Rule(
        "Redis",
        ("redis.exceptions.ConnectionError", "redis.exceptions.TimeoutError", "redis.exceptions.ReadOnlyError"),
        Outcome.RETRY,
        "the server is away, loads its data or is a replica now",
    ),
    Rule("System", ("ConnectionError", "TimeoutError"), Outcome.RETRY, "no server answers at the address now"),
)

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
DISK_RULE = Rule(
    "System",
    tuple(errno.errorcode[number] for number in DISK_ERRORS),
    Outcome.RETRY,
    "the disk is full or fails: the position stays where it is until there is room",
    codes=DISK_ERRORS,
)
UNKNOWN = Rule("any", ("everything else",), Outcome.STOP, "nobody knows what it means: going on could lose events")


def every_rule() -> Iterator[Rule]:
    """All rules in the order in which they are tried, for the table in the documentation."""
    yield TOKEN_NOT_FOUND
    yield from SERVER_RULES
    yield RESUMABLE_LABEL
    yield NETWORK
    yield from KAFKA_RULES
    yield from LIBRARY_RULES
    yield DISK_RULE
    yield UNKNOWN


def as_markdown() -> str:
    """Give the table for the documentation, which a test holds against it."""
    lines = ["| from | errors | outcome | because |", "|---|---|---|---|"]
    for rule in every_rule():
        numbers = rule.codes if rule.origin == "MongoDB" else ()
        named = [f"{code} {name}" for code, name in zip(numbers, rule.names, strict=False)] or list(rule.names)
        lines.append(f"| {rule.origin} | {', '.join(named)} | {rule.verdict} | {rule.why} |")
    return "\n".join(lines)


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
