"""Every error tailrace raises, in one tree.

    TailraceError
    ├── SettingsError            settings-invalid         stop     a key, value or file of the settings
    ├── MissingExtra             extra-missing            stop     an optional dependency is not installed
    ├── ThreadDied               thread-died              retry    a thread of this process failed and was restarted
    ├── ServerUnreachable        server-unreachable       retry    no server answers at an address
    ├── DeploymentUnsuitable     deployment-unsuitable    stop     this MongoDB cannot do what is asked of it
    │   └── NotReplicaSet        not-a-replica-set        stop     a standalone mongod
    │       └── NotInitiated     replica-set-not-initiated retry   nobody initiated it, or it has only started
    ├── NotCaughtUp              not-caught-up            retry    a stream has not delivered up to a time
    ├── NotAuthorized            not-authorized           stop     the user lacks a privilege
    ├── FileUnusable             file-unusable            stop     a file or folder cannot be read or written
    ├── BsonMalformed            bson-malformed           stop     bytes that are not BSON
    ├── OplogEntryInvalid        oplog-entry-invalid      stop     an oplog entry that no server writes
    ├── OplogUnreadable          oplog-unreadable         stop     the oplog is not there, or may not be read
    ├── AlertUndelivered         alert-undelivered        retry    a webhook did not accept an alert
    ├── BadFrame                 bad-frame                stop     bytes that are not a wire protocol message
    ├── RecordingInvalid         recording-invalid        stop     a recording that cannot be read
    ├── ChangeStreamError        change-stream-error      stop     what a server answers to a change stream
    │   ├── StreamRefused        stream-refused           stop     it cannot be opened like this
    │   │   └── PipelineUnsupported pipeline-unsupported  stop     a stage that only the server itself can run
    │   ├── InvalidResumeToken   resume-token-invalid     stop     260, and bytes that are no token
    │   ├── HistoryLost          history-lost             recover  286: the oplog begins after the position
    │   ├── StreamFatal          stream-fatal             stop     280: it can never resume from there
    │   ├── PipelineFailed       pipeline-failed          stop     a user's stage cannot compute an event
    │   ├── ImageMissing         image-missing            stop     47: a required image does not exist
    │   └── EventTooLarge        event-too-large          stop     10334: an event over 16 MB
    ├── ResumeTokenMissing       resume-token-missing     stop     an event came without its `_id`
    ├── CaptureError             capture-error            stop     positions, formats and sinks of a capture
    │   ├── StoreUnavailable     position-store-unavailable retry  the position store does not answer
    │   ├── PositionInvalid      position-invalid         stop     a position that cannot be right
    │   ├── LeaseHeld            lease-held               retry    another writer has the name; says until when
    │   ├── LeaseLost            lease-lost               stop     another writer took the name over
    │   ├── LeaseExpired         lease-expired            retry    this writer was silent for longer than its lease
    │   ├── Backpressure         backpressure             retry    a sink's buffer is full; says when to try again
    │   ├── SinkUnavailable      sink-unavailable         retry    a sink does not answer, or lost records
    │   ├── RecordRefused        record-refused           stop     a sink will never accept this record
    │   ├── HandlerFailed        handler-failed           stop     the application's handler fails on an event
    │   └── EventUnconvertible   event-unconvertible      stop     an event that a format cannot represent
    ├── TokenQuarantined         token-quarantined        recover  a token that was answered with 286 before
    ├── StreamInvalidated        stream-invalidated       recover  an invalidate event that cannot be crossed
    ├── EventUnreadable          event-unreadable         recover  no form of an event fits into 16 MB
    ├── GapOpen                  gap-open                 recover  a gap in the ledger, and recovery is by hand
    ├── ControlRefused           control-refused          stop     a running process refuses a request
    ├── AuditUnavailable         audit-unavailable        stop     an action cannot be written to the audit log
    ├── GapUnknown               gap-unknown              stop     the ledger has no gap with this number
    ├── InventoryMissing         inventory-missing        stop     the keys captured before are not known
    ├── FeatureStoreUnavailable  feature-store-unavailable retry   the Redis of the features does not answer
    ├── FeatureStoreFull         feature-store-full       retry    the Redis of the features is at its maxmemory
    ├── FeaturesEvicted          features-evicted         stop     Redis may remove features to make room
    ├── FeaturesMixed            features-mixed           stop     Redis has features of another definition
    ├── FeaturesUnknown          features-unknown         stop     Redis has no features of this name
    ├── FeaturesLost             features-lost            recover  Redis lost features that were written
    ├── DiskFull                 disk-full                stop     a job cannot write its files
    ├── FormatMismatch           format-mismatch          stop     all records of a batch are of another format
    ├── CheckpointMissing        checkpoint-missing       stop     a job's output is there, its checkpoint is not
    ├── SchemaDrifted            schema-drift             stop     a document does not fit its strict table
    ├── RebuildIncomplete        rebuild-incomplete       stop     the topics lack whole documents
    ├── TableChanged             table-changed            retry    another job wrote to a table meanwhile
    ├── QueryFailed              query-failed             retry    a Spark query keeps failing
    ├── SqlRefused               sql-refused              stop     a query that cannot be answered
    ├── AlreadyUp                already-up               stop     another `tailrace up` has the run folder
    ├── PartGaveUp               part-gave-up             stop     a part of `tailrace up` keeps failing
    └── StandError               stand-failed             stop     a local server of the stand
        ├── DownloadFailed       download-failed          retry    a package could not be fetched
        ├── ChecksumMismatch     checksum-mismatch        stop     a package is not the one that was pinned
        └── ServerDidNotStart    server-did-not-start     stop     a process ended, or never answered

Each class has a `code` that never changes, an `outcome` that says what a program can do about it, and a `hint`
with the next step for a person. All of them pickle, because Spark and multiprocessing
carry errors between processes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from tailrace import server_codes


class Outcome(StrEnum):
    """What a program can do about an error."""

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


class ThreadDied(TailraceError):
    """A thread of this process ended with an unexpected error, and was restarted."""

    code = "thread-died"
    outcome = Outcome.RETRY
    default_hint = "The log shows where it failed; please report it with the log."


class ServerUnreachable(TailraceError):
    """No server answers at the given address."""

    code = "server-unreachable"
    outcome = Outcome.RETRY
    default_hint = "Check the URI and that the server runs, or start one with `tailrace stand up`."


class DeploymentUnsuitable(TailraceError):
    """The MongoDB deployment answers, but cannot do what is asked of it."""

    code = "deployment-unsuitable"
    default_hint = "Give the URI of the replica set, or of a mongos of the cluster."


class NotReplicaSet(DeploymentUnsuitable):
    """A standalone mongod has no oplog and no change streams."""

    code = "not-a-replica-set"
    default_hint = "Start mongod with --replSet, and run rs.initiate() once."


class NotInitiated(NotReplicaSet):
    """A member without a configuration: nobody initiated its set, or it has only started and not read it yet."""

    code = "replica-set-not-initiated"
    outcome = Outcome.RETRY
    default_hint = "Run once, on one member: mongosh --eval 'rs.initiate()'"


class NotAuthorized(TailraceError):
    """The user is authenticated, but lacks the privilege for a command."""

    code = "not-authorized"
    default_hint = (
        "Grant `read` on each database that is watched, `readAnyDatabase` for the whole cluster, "
        "and `read` on `local` to read the oplog; the security page has the roles per verb."
    )


class NotCaughtUp(TailraceError):
    """A stream has not delivered everything up to the requested time."""

    code = "not-caught-up"
    outcome = Outcome.RETRY
    default_hint = "Run `tailrace produce`, or `tailrace produce --until-idle`, and try again."


class FileUnusable(TailraceError):
    """A file or folder cannot be read or written."""

    code = "file-unusable"
    default_hint = "Check the path and its permissions."


class BsonMalformed(TailraceError):
    """Bytes that should be BSON are not; `offset` is the first invalid byte."""

    code = "bson-malformed"
    default_hint = "The data was damaged in transit, or is not BSON: inspect the bytes at that offset."

    def __init__(self, message: str, *, offset: int, hint: str | None = None) -> None:
        super().__init__(f"{message} (at byte {offset})", hint=hint, offset=offset)
        self.offset = offset


class OplogEntryInvalid(TailraceError):
    """An oplog entry lacks a field, or has one of a type, that no server writes."""

    code = "oplog-entry-invalid"
    default_hint = "The entry is in `details`; check that the upstream is a MongoDB 4.2 to 7.0 server."


class OplogUnreadable(TailraceError):
    """The server has no oplog, or the user may not read it."""

    code = "oplog-unreadable"
    default_hint = "Give the user the role `read` on the database `local`."


class AlertUndelivered(TailraceError):
    """A webhook refused an alert, or did not answer any attempt."""

    code = "alert-undelivered"
    outcome = Outcome.RETRY
    default_hint = "Check monitor.webhook_url; the alert is in the log and is sent again at the next poll."


class BadFrame(TailraceError):
    """A peer sent bytes that are not a wire protocol message, or did not send them in time."""

    code = "bad-frame"
    default_hint = "The peer was disconnected; check that it is a MongoDB driver, and that both or neither use TLS."


class RecordingInvalid(TailraceError):
    """A recording cannot be read, or does not contain what was requested."""

    code = "recording-invalid"
    default_hint = "Check the line in the message; an extra file must be next to its main file."


class ChangeStreamError(TailraceError):
    """What a MongoDB server answers in the same place, with its code, code name and error labels."""

    code = "change-stream-error"
    server_code: int = 0
    labels: tuple[str, ...] = ()

    def __init__(
        self, message: str, *, server_code: int | None = None, server_code_name: str | None = None, **details: Any
    ) -> None:
        super().__init__(message, **details)
        if server_code is not None:
            self.server_code = server_code
        self._server_code_name = server_code_name

    @property
    def server_code_name(self) -> str:
        """Give the name MongoDB has for the code; codes without a name are `Location<code>`."""
        return self._server_code_name or server_codes.name_of(self.server_code)


class StreamRefused(ChangeStreamError):
    """A stream cannot be opened with this namespace, these options or this pipeline."""

    code = "stream-refused"
    default_hint = "Change the option or the stage named in the message."


class PipelineUnsupported(StreamRefused):
    """The engine does not support a stage of the user's pipeline; the server may."""

    code = "pipeline-unsupported"
    default_hint = "Open this stream on the server itself (`--source change-stream`), or rewrite the stage."


class InvalidResumeToken(ChangeStreamError):
    """A resume token is invalid, or cannot be used this way."""

    code = "resume-token-invalid"
    server_code = server_codes.INVALID_RESUME_TOKEN
    default_hint = "A token is the `_id` of an event, in hexadecimal digits; after an invalidate event use startAfter."


class HistoryLost(ChangeStreamError):
    """The oplog no longer reaches back to the position."""

    code = "history-lost"
    outcome = Outcome.RECOVER
    server_code = server_codes.CHANGE_STREAM_HISTORY_LOST
    labels = ("NonResumableChangeStreamError",)
    default_hint = "Events are missing from here on: take a snapshot, and enlarge the oplog."


class StreamFatal(ChangeStreamError):
    """The position is not in the stream, or the pipeline destroyed the positions."""

    code = "stream-fatal"
    server_code = server_codes.CHANGE_STREAM_FATAL_ERROR
    labels = ("NonResumableChangeStreamError",)
    default_hint = "Check that the token comes from this namespace, and that no stage changes `_id`."


class PipelineFailed(ChangeStreamError):
    """A stage of the user's pipeline failed on an event, with the code the server would give."""

    code = "pipeline-failed"
    default_hint = "Change the stage so that it can handle the event, for example with $ifNull or onError."


class ImageMissing(ChangeStreamError):
    """A pre- or post-image is required but does not exist."""

    code = "image-missing"
    server_code = server_codes.NO_MATCHING_DOCUMENT
    default_hint = "Enable changeStreamPreAndPostImages, or ask for `whenAvailable`."


class EventTooLarge(ChangeStreamError):
    """An event, or a part of one that cannot be split, is over 16 MB."""

    code = "event-too-large"
    server_code = server_codes.BSON_OBJECT_TOO_LARGE
    default_hint = "Project out the large fields, or add $changeStreamSplitLargeEvent (6.0.9 and later)."


class ResumeTokenMissing(TailraceError):
    """An event has no resume token, so the stream could not be resumed after it."""

    code = "resume-token-missing"
    default_hint = "Keep `_id` in every stage of the pipeline; other fields may be removed."


class CaptureError(TailraceError):
    """Something about a position, a format or a sink of a capture."""

    code = "capture-error"


class StoreUnavailable(CaptureError):
    """The position store does not answer, or cannot write."""

    code = "position-store-unavailable"
    outcome = Outcome.RETRY
    default_hint = "Check capture.position_store, and that its server runs or its disk has free space."


class PositionInvalid(CaptureError):
    """A position cannot be read, or would move back without a reason."""

    code = "position-invalid"
    default_hint = "Inspect it with `tailrace position show`, and its past with `tailrace position history`."


class LeaseHeld(CaptureError):
    """Another writer holds this position; try again after `retry_after` seconds."""

    code = "lease-held"
    outcome = Outcome.RETRY
    default_hint = "Stop the other process, or use another name; a dead one is replaced when its lease expires."

    def __init__(self, name: str, *, holder: str, retry_after: float) -> None:
        super().__init__(f"{name} is in use by {holder}", holder=holder, retry_after=retry_after)
        self.holder = holder
        self.retry_after = retry_after


class LeaseLost(CaptureError):
    """Another writer took over; further writes of this one are rejected."""

    code = "lease-lost"
    default_hint = "Stop this process: the other one continues. If there is no other, restart it."


class LeaseExpired(CaptureError):
    """This writer was suspended, or waited for its store, for so long that another may have taken over."""

    code = "lease-expired"
    outcome = Outcome.RETRY
    default_hint = (
        "No action needed: it continues if nobody took over. If it happens often, raise capture.lease_seconds."
    )


class Backpressure(CaptureError):
    """A sink's buffer is full: nothing was accepted; try again after `retry_after` seconds."""

    code = "backpressure"
    outcome = Outcome.RETRY
    default_hint = "No action needed: reading waits until the sink has caught up."

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message, retry_after=retry_after)
        self.retry_after = retry_after


class SinkUnavailable(CaptureError):
    """A sink does not answer, or lost records; deliver again from the last position."""

    code = "sink-unavailable"
    outcome = Outcome.RETRY
    default_hint = "Check that the sink's server runs; delivery continues from the last position."


class RecordRefused(CaptureError):
    """A record that the sink will never accept, with dead letters turned off."""

    code = "record-refused"
    default_hint = "Raise the limit named in the message, or set capture.dead_letters."


class HandlerFailed(CaptureError):
    """The application's handler raised an exception at every attempt; the position is before the event."""

    code = "handler-failed"
    default_hint = "The cause is the handler's exception; fix the handler, or set `dead_letters` to skip such events."


class EventUnconvertible(CaptureError):
    """A format cannot represent this event."""

    code = "event-unconvertible"
    default_hint = "The event is in the dead letters; the format bson can represent every event."


class TokenQuarantined(TailraceError):
    """A token that a server answered with ChangeStreamHistoryLost would be sent again."""

    code = "token-quarantined"
    outcome = Outcome.RECOVER
    default_hint = "The history after it is lost: see the gap with `tailrace gaps`, then run `tailrace recover`."


class StreamInvalidated(TailraceError):
    """A stream ended with an invalidate event, and the server does not allow it to continue after that."""

    code = "stream-invalidated"
    outcome = Outcome.RECOVER
    default_hint = "Run `tailrace recover`; a stream of cluster scope (the default) is never invalidated."


class EventUnreadable(TailraceError):
    """No form of an event fits into 16 MB: its `_id` is so large that token and documentKey alone do not."""

    code = "event-unreadable"
    outcome = Outcome.RECOVER
    default_hint = "Run `tailrace recover`: documents are read again, and the stream starts after the event."


class GapOpen(TailraceError):
    """The ledger has an open gap, and automatic recovery is off."""

    code = "gap-open"
    outcome = Outcome.RECOVER
    default_hint = "Inspect it with `tailrace gaps`, then run `tailrace recover --dry-run` and `tailrace recover`."


class ControlRefused(TailraceError):
    """A running process refuses a request over HTTP; `status` is the status code of the answer."""

    code = "control-refused"
    default_hint = "GET /state shows what the process is doing."

    def __init__(self, message: str, *, status: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, status=status)
        self.status = status


class AuditUnavailable(TailraceError):
    """An action cannot be written to the audit log, so it is not performed."""

    code = "audit-unavailable"
    default_hint = "Check audit.log: its file must be writable, or its broker reachable."


class GapUnknown(TailraceError):
    """The ledger has no gap with this number."""

    code = "gap-unknown"
    default_hint = "List them with `tailrace gaps`."


class InventoryMissing(TailraceError):
    """Deletes made in a gap cannot be found: there is no record of the keys that were captured before it."""

    code = "inventory-missing"
    default_hint = "Use a Kafka sink with a retained topic, or set capture.inventory to a folder for next time."


class FeatureStoreUnavailable(TailraceError):
    """The Redis that stores the features does not answer."""

    code = "feature-store-unavailable"
    outcome = Outcome.RETRY
    default_hint = "Check features.redis_url, and that Redis runs."


class FeatureStoreFull(TailraceError):
    """The Redis that stores the features has reached its `maxmemory`."""

    code = "feature-store-full"
    outcome = Outcome.RETRY
    default_hint = "Raise maxmemory, or use shorter windows; nothing was lost, and the job continues with this batch."


class FeaturesEvicted(TailraceError):
    """Redis is set to remove keys when it is full, and features would become wrong without notice."""

    code = "features-evicted"
    default_hint = "Run `CONFIG SET maxmemory-policy noeviction`, or give the features a Redis of their own."


class FeaturesMixed(TailraceError):
    """Redis has features of another definition under this name."""

    code = "features-mixed"
    default_hint = "Give the changed definition a new name, fill it with --backfill, and move the readers over."


class FeaturesUnknown(TailraceError):
    """Redis has no features with this name."""

    code = "features-unknown"
    default_hint = "Check the name, and that `tailrace features` runs with this Redis."


class FeaturesLost(TailraceError):
    """Redis has lost data, so its features no longer match the documents."""

    code = "features-lost"
    outcome = Outcome.RECOVER
    default_hint = "Run `tailrace features --backfill` with a new checkpoint, and enable Redis's append-only file."


class DiskFull(TailraceError):
    """A job cannot write its checkpoint, tables or temporary files."""

    code = "disk-full"
    default_hint = "Free some space, or move spark.checkpoints or the tables; the job resumes from its checkpoint."


class FormatMismatch(TailraceError):
    """No record of a batch can be read: the topics have another format than the job expects."""

    code = "format-mismatch"
    default_hint = "Pass the producer's format with --format; nothing was skipped."


class CheckpointMissing(TailraceError):
    """A job has written before, but its checkpoint is missing."""

    code = "checkpoint-missing"
    default_hint = "Pass the job's checkpoint with --checkpoint, or start again with --backfill."


class SchemaDrifted(TailraceError):
    """A document has a field that its strict table does not allow."""

    code = "schema-drift"
    default_hint = (
        "Declare the field in warehouse.declared, or change on_drift or the contract; then run the job again."
    )


class RebuildIncomplete(TailraceError):
    """The retained topics do not contain every document as a whole, so the mirror was not changed."""

    code = "rebuild-incomplete"
    default_hint = "Take a new snapshot into the topics (`tailrace snapshot`), or swap it in anyway with --force."


class TableChanged(TailraceError):
    """A table changed while its replacement was built, so it was not replaced."""

    code = "table-changed"
    outcome = Outcome.RETRY
    default_hint = "Stop `tailrace warehouse run` while a table is rebuilt, then run the rebuild again."


class QueryFailed(TailraceError):
    """A Spark streaming query keeps failing for a reason outside tailrace."""

    code = "query-failed"
    outcome = Outcome.RETRY
    default_hint = "Run it with --debug to see Spark's stack trace; it resumes from its checkpoint."


class SqlRefused(TailraceError):
    """A query that is not valid SQL, is not read-only, or names unknown tables or columns."""

    code = "sql-refused"
    default_hint = "`tailrace warehouse tables` lists the tables, `tailrace sql --describe db.table` their columns."


class AlreadyUp(TailraceError):
    """Another `tailrace up` runs in this folder."""

    code = "already-up"
    default_hint = "Stop the other one, or use another folder with --folder."


class PartGaveUp(TailraceError):
    """A part of `tailrace up` keeps failing, or failed in a way that a restart cannot fix."""

    code = "part-gave-up"
    default_hint = "Read its log, named in the message; its last lines are shown above."


class StandError(TailraceError):
    """A local server could not be downloaded, started or controlled."""

    code = "stand-failed"
    default_hint = "Run `tailrace stand status` to see what runs and where its logs are."


class DownloadFailed(StandError):
    """A package could not be downloaded from its registry."""

    code = "download-failed"
    outcome = Outcome.RETRY
    default_hint = "Check that the package registry is reachable, then run the command again."


class ChecksumMismatch(StandError):
    """A download does not match its pinned checksum."""

    code = "checksum-mismatch"
    default_hint = "Delete the file and try again; if it happens again, the registry serves another file."


class ServerDidNotStart(StandError):
    """A server process ended early or did not answer in time."""

    code = "server-did-not-start"
    default_hint = "Read the end of its log, named in the message."


__all__ = sorted(
    name for name, value in globals().items() if isinstance(value, type) and issubclass(value, TailraceError | Outcome)
)
