"""From what libraries raise to errors of ours: what a user can cause has a code, a cause and a next step."""

from __future__ import annotations

from pymongo.errors import ConfigurationError, ConnectionFailure, InvalidURI, OperationFailure, PyMongoError

from tailrace import server_codes
from tailrace.errors import (
    ChangeStreamError,
    FileUnusable,
    HistoryLost,
    InvalidResumeToken,
    NotAuthorized,
    NotReplicaSet,
    QueryFailed,
    ServerUnreachable,
    SettingsError,
    SinkUnavailable,
    StreamFatal,
    StreamRefused,
    TailraceError,
)
from tailrace.extras import extra_of, missing_extra
from tailrace.masking import masked, shown_failure

_BY_CODE: dict[int | None, type[ChangeStreamError]] = {
    **dict.fromkeys(server_codes.HISTORY_LOST, HistoryLost),
    **dict.fromkeys(server_codes.TOKEN_NOT_UNDERSTOOD, InvalidResumeToken),
    server_codes.CHANGE_STREAM_FATAL_ERROR: StreamFatal,
}


def error_for(error: BaseException) -> TailraceError | None:
    """Give our error for one of a library, or None for what no user can cause."""
    if isinstance(error, TailraceError):
        return error
    if isinstance(error, ModuleNotFoundError):
        return missing_extra(error) if extra_of(error.name) else None
    if isinstance(error, PyMongoError):
        return _of_pymongo(error)
    if type(error).__name__ == "KafkaException":
        return _of_kafka(error)
    if type(error).__module__ == "redis.exceptions":
        return ServerUnreachable(f"Redis does not answer: {masked(str(error))}")
    if type(error).__module__.partition(".")[0] in ("py4j", "pyspark"):
        return _of_spark(error)
    if isinstance(error, OSError) and error.filename is not None:
        return FileUnusable(f"{error.filename}: {error.strerror}")
    return None


def _of_spark(error: BaseException) -> TailraceError:
    """Give the cause alone, without the JVM's stack: a table, a folder or a server that Spark could not use."""
    from tailrace.spark.failures import cause_of, error_of, permanent_error

    return error_of(error) or permanent_error(error) or QueryFailed(f"Spark: {masked(cause_of(error))}")


def _of_pymongo(error: PyMongoError) -> TailraceError:
    reason = masked(str(error))
    if isinstance(error, OperationFailure):
        return _of_server(error)
    if isinstance(error, InvalidURI | ConfigurationError):
        return SettingsError(f"mongodb.uri: {reason}", hint="It looks like mongodb://host:27017/.")
    if isinstance(error, ConnectionFailure):
        return ServerUnreachable(f"MongoDB does not answer: {shown_failure(error)}")
    return StreamRefused(f"MongoDB's driver refused it: {reason}")


def _of_server(error: OperationFailure) -> TailraceError:
    reason = masked(str((error.details or {}).get("errmsg", error)))
    if error.code == server_codes.UNAUTHORIZED:
        return NotAuthorized(f"the user of mongodb.uri lacks a privilege: {reason.partition(' to execute command')[0]}")
    if error.code == server_codes.AUTHENTICATION_FAILED:
        hint = "Check the user, the password and authSource in mongodb.uri."
        return SettingsError(f"MongoDB refused the user: {reason}", hint=hint)
    if error.code == server_codes.ONLY_ON_REPLICA_SETS:
        return NotReplicaSet(reason)
    if error.code in server_codes.PASSING:
        return ServerUnreachable(f"MongoDB cannot answer now: {reason}")
    return _BY_CODE.get(error.code, StreamRefused)(reason, server_code=error.code)


def _of_kafka(error: BaseException) -> TailraceError:
    """Take a wrong option for what it is; anything else is a broker that cannot be used now."""
    inner = error.args[0]
    reason = masked(inner.str())
    if inner.name() in ("_INVALID_ARG", "_CONF"):
        hint = "Options in a kafka:// URL are librdkafka's; its CONFIGURATION.md lists their names and values."
        return SettingsError(f"a Kafka option is wrong: {reason}", hint=hint)
    return SinkUnavailable(f"Kafka: {inner.name()}: {reason}")
