from __future__ import annotations

import errno
from pathlib import Path

import psycopg
import pytest
import redis
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st
from pymongo.errors import AutoReconnect, NetworkTimeout, NotPrimaryError, OperationFailure, ServerSelectionTimeoutError

from tailrace import errors
from tailrace.capture.classifier import SERVER_RULES, Remedy, as_markdown, classify, every_rule
from tailrace.errors import Outcome, TailraceError

DOCS = Path(__file__).resolve().parents[2] / "docs"


def server_error(code: int, message: str = "no", labels: tuple[str, ...] = ()) -> OperationFailure:
    return OperationFailure(message, code, {"ok": 0, "code": code, "errmsg": message, "errorLabels": list(labels)})


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (server_error(286), Outcome.RECOVER),
        (server_error(280, "cannot resume stream; the resume token was not found. {_data: ..}"), Outcome.RECOVER),
        (server_error(280, "Encountered an event whose _id field was modified by the pipeline"), Outcome.STOP),
        (server_error(260), Outcome.RESUME),
        (server_error(10334), Outcome.RESUME),
        (server_error(43), Outcome.RESUME),
        (server_error(189), Outcome.RETRY),
        (server_error(13), Outcome.STOP),
        (server_error(4711), Outcome.STOP),
        (server_error(4711, labels=("ResumableChangeStreamError",)), Outcome.RESUME),
        (NotPrimaryError("not primary", {"code": 10107}), Outcome.RETRY),
        (AutoReconnect("gone"), Outcome.RETRY),
        (NetworkTimeout("slow"), Outcome.RETRY),
        (ServerSelectionTimeoutError("nobody"), Outcome.RETRY),
        (KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)), Outcome.RETRY),
        (KafkaException(KafkaError(KafkaError._FENCED)), Outcome.STOP),
        (KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), Outcome.STOP),
        (KafkaError(KafkaError._MSG_TIMED_OUT), Outcome.RESUME),
        (KafkaException(KafkaError(KafkaError.CONCURRENT_TRANSACTIONS)), Outcome.RETRY),
        (psycopg.OperationalError("server closed the connection"), Outcome.RETRY),
        (psycopg.errors.UndefinedTable("no"), Outcome.STOP),
        (redis.exceptions.BusyLoadingError("loading"), Outcome.RETRY),
        (ConnectionResetError(errno.ECONNRESET, "reset"), Outcome.RETRY),
        (OSError(errno.ENOSPC, "no space"), Outcome.RETRY),
        (PermissionError(errno.EACCES, "no"), Outcome.STOP),
        (ValueError("a bug"), Outcome.STOP),
        (errors.HistoryLost("gone"), Outcome.RECOVER),
        (errors.InvalidResumeToken("odd"), Outcome.RESUME),
        (errors.SinkUnavailable("away"), Outcome.RETRY),
        (errors.LeaseLost("taken"), Outcome.STOP),
    ],
)
def test_each_error_has_its_outcome(error: Exception, outcome: Outcome) -> None:
    assert classify(error).outcome is outcome


def test_a_refused_token_is_replaced_by_the_stored_time() -> None:
    assert classify(server_error(260)).remedy is Remedy.START_AT_TIME


def test_every_error_of_ours_keeps_the_outcome_of_its_class_unless_a_server_says_the_same() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, TailraceError):
            error = kind.__new__(kind, "x")
            Exception.__init__(error, "x")
            error.message = "x"
            by_server = {code: rule.verdict for rule in SERVER_RULES for code in rule.codes}
            expected = by_server.get(getattr(error, "server_code", -1), kind.outcome)
            assert classify(error).outcome is expected, name


def test_no_code_stands_in_two_rules() -> None:
    codes = [code for rule in SERVER_RULES for code in rule.codes]
    assert len(codes) == len(set(codes))


@given(st.integers())
def test_a_code_that_nobody_knows_stops(code: int) -> None:
    known = {code for rule in every_rule() for code in rule.codes}
    if code not in known:
        assert classify(server_error(code)).outcome is Outcome.STOP


def test_the_documented_table_is_the_real_one() -> None:
    assert as_markdown() in (DOCS / "errors.md").read_text()
