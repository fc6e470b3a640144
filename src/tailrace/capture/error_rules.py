"""The rules of the error classifier, as data: which errors, what is done about them, and why."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tailrace import server_codes
from tailrace.errors import Outcome


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
        {10334},
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
    codes=(280,),
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
