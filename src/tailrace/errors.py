"""Every error tailrace raises, in one tree.

    TailraceError
    ├── SettingsError            settings-invalid         stop     a key, value or file of the settings
    ├── MissingExtra             extra-missing            stop     an optional dependency is not installed
    ├── ThreadDied               thread-died              retry    a thread of this process failed and was started again
    ├── ServerUnreachable        server-unreachable       retry    nobody answers at an address
    ├── DeploymentUnsuitable     deployment-unsuitable    stop     this MongoDB cannot do what is asked of it
    │   └── NotReplicaSet        not-a-replica-set        stop     a standalone mongod, or a set nobody initiated
    ├── NotCaughtUp              not-caught-up            retry    a stream has not delivered up to a time
    ├── NotAuthorized            not-authorized           stop     the user lacks a privilege
    ├── FileUnusable             file-unusable            stop     a file or folder cannot be read or written
    ├── BsonMalformed            bson-malformed           stop     bytes that are not BSON
    ├── OplogEntryInvalid        oplog-entry-invalid      stop     an oplog entry that no server writes
    ├── OplogUnreadable          oplog-unreadable         stop     the oplog is not there, or may not be read
    ├── AlertUndelivered         alert-undelivered        retry    a webhook did not take an alert
    ├── BadFrame                 bad-frame                stop     bytes that are no message of the wire protocol
    ├── RecordingInvalid         recording-invalid        stop     a recording that cannot be read
    ├── ChangeStreamError        change-stream-error      stop     what a server answers to a change stream
    │   ├── StreamRefused        stream-refused           stop     it cannot be opened like this
    │   │   └── PipelineUnsupported pipeline-unsupported  stop     a stage that only the server itself can run
    │   ├── InvalidResumeToken   resume-token-invalid     stop     260, and bytes that are no token
    │   ├── HistoryLost          history-lost             recover  286: the oplog begins after the position
    │   ├── StreamFatal          stream-fatal             stop     280: it can never go on from there
    │   ├── PipelineFailed       pipeline-failed          stop     a user's stage cannot compute an event
    │   ├── ImageMissing         image-missing            stop     47: a required image is not there
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
    │   ├── RecordRefused        record-refused           stop     a sink will never take this record
    │   ├── HandlerFailed        handler-failed           stop     the code of the application fails on an event
    │   └── EventUnconvertible   event-unconvertible      stop     an event that a format cannot express
    ├── TokenQuarantined         token-quarantined        recover  a token that was answered with 286 before
    ├── StreamInvalidated        stream-invalidated       recover  an invalidate event that cannot be crossed
    ├── EventUnreadable          event-unreadable         recover  no form of an event fits into 16 MB
    ├── GapOpen                  gap-open                 recover  a gap in the ledger, and recovery is by hand
    ├── ControlRefused           control-refused          stop     a running process does not do what it is asked
    ├── AuditUnavailable         audit-unavailable        stop     what somebody does cannot be written down
    ├── GapUnknown               gap-unknown              stop     no gap of this number is in the ledger
    ├── InventoryMissing         inventory-missing        stop     nobody knows which keys were captured before
    ├── FeatureStoreUnavailable  feature-store-unavailable retry   the Redis of the features does not answer
    ├── FeaturesMixed            features-mixed           stop     Redis has features of another definition
    ├── FeaturesUnknown          features-unknown         stop     Redis has no features of this name
    ├── FeaturesLost             features-lost            recover  Redis forgot features that were written
    ├── DiskFull                 disk-full                stop     a job cannot write its files
    ├── FormatMismatch           format-mismatch          stop     all records of a batch are of another format
    ├── CheckpointMissing        checkpoint-missing       stop     a job's output is there, its checkpoint is not
    ├── SchemaDrifted            schema-drift             stop     a document does not fit its strict table
    ├── RebuildIncomplete        rebuild-incomplete       stop     the topics do not tell every document whole
    ├── TableChanged             table-changed            retry    another job wrote to a table meanwhile
    ├── QueryFailed              query-failed             retry    a Spark query ends again and again
    ├── SqlRefused               sql-refused              stop     a query that cannot be answered
    ├── AlreadyUp                already-up               stop     another `tailrace up` has the run folder
    ├── PartGaveUp               part-gave-up             stop     a part of `tailrace up` ends again and again
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

from tailrace.server_codes import name_of

__all__ = [
    "AlertUndelivered",
    "AlreadyUp",
    "AuditUnavailable",
    "Backpressure",
    "BadFrame",
    "BsonMalformed",
    "CaptureError",
    "ChangeStreamError",
    "CheckpointMissing",
    "ChecksumMismatch",
    "ControlRefused",
    "DeploymentUnsuitable",
    "DiskFull",
    "DownloadFailed",
    "EventTooLarge",
    "EventUnconvertible",
    "EventUnreadable",
    "FeatureStoreUnavailable",
    "FeaturesLost",
    "FeaturesMixed",
    "FeaturesUnknown",
    "FileUnusable",
    "FormatMismatch",
    "GapOpen",
    "GapUnknown",
    "HandlerFailed",
    "HistoryLost",
    "ImageMissing",
    "InvalidResumeToken",
    "InventoryMissing",
    "LeaseExpired",
    "LeaseHeld",
    "LeaseLost",
    "MissingExtra",
    "NotAuthorized",
    "NotCaughtUp",
    "NotReplicaSet",
    "OplogEntryInvalid",
    "OplogUnreadable",
    "Outcome",
    "PartGaveUp",
    "PipelineFailed",
    "PipelineUnsupported",
    "PositionInvalid",
    "QueryFailed",
    "RebuildIncomplete",
    "RecordRefused",
    "RecordingInvalid",
    "ResumeTokenMissing",
    "SchemaDrifted",
    "ServerDidNotStart",
    "ServerUnreachable",
    "SettingsError",
    "SinkUnavailable",
    "SqlRefused",
    "StandError",
    "StoreUnavailable",
    "StreamFatal",
    "StreamInvalidated",
    "StreamRefused",
    "TableChanged",
    "TailraceError",
    "ThreadDied",
    "TokenQuarantined",
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


class ThreadDied(TailraceError):
    """A thread of this process ended by an error that nobody expected, and was started again."""

    code = "thread-died"
    outcome = Outcome.RETRY
    default_hint = "The log says where it failed; report it, with the log."


class ServerUnreachable(TailraceError):
    """Nobody answers at the address that was given."""

    code = "server-unreachable"
    outcome = Outcome.RETRY
    default_hint = "Check the URI and that the server runs, or start one with `tailrace stand up`."


class DeploymentUnsuitable(TailraceError):
    """A MongoDB deployment answers, but of a kind that cannot do what is asked of it."""

    code = "deployment-unsuitable"
    default_hint = "Give the URI of the replica set, or of a mongos of the cluster."


class NotReplicaSet(DeploymentUnsuitable):
    """A standalone mongod, or one whose replica set was never initiated, has no oplog and no change streams."""

    code = "not-a-replica-set"
    default_hint = "Start mongod with --replSet, and run rs.initiate() once."


class NotAuthorized(TailraceError):
    """The server knows the user, who lacks the privilege for a command."""

    code = "not-authorized"
    default_hint = (
        "Grant `read` on each database that is watched, `readAnyDatabase` for the whole cluster, "
        "and `read` on `local` to read the oplog; the security page has the roles per verb."
    )


class NotCaughtUp(TailraceError):
    """A stream has not delivered everything up to the time that is asked for."""

    code = "not-caught-up"
    outcome = Outcome.RETRY
    default_hint = "Run `tailrace produce`, or `tailrace produce --until-idle`, and try again."


class FileUnusable(TailraceError):
    """A file or folder that was named cannot be read or written."""

    code = "file-unusable"
    default_hint = "Check the path, and who may read and write it."


class BsonMalformed(TailraceError):
    """Bytes that should be BSON are not; `offset` is the first that cannot be right."""

    code = "bson-malformed"
    default_hint = "The data was damaged on its way, or is no BSON: look at the bytes there."

    def __init__(self, message: str, *, offset: int, hint: str | None = None) -> None:
        super().__init__(f"{message} (at byte {offset})", hint=hint, offset=offset)
        self.offset = offset


class OplogEntryInvalid(TailraceError):
    """An oplog entry lacks a field, or has one of a type, that no server writes."""

    code = "oplog-entry-invalid"
    default_hint = "The entry is in `details`; check that the upstream is a MongoDB 4.2 to 6.0 server."


class OplogUnreadable(TailraceError):
    """The server has no oplog, or the user may not read it."""

    code = "oplog-unreadable"
    default_hint = "Give the user the role `read` on the database `local`."


class AlertUndelivered(TailraceError):
    """A webhook refused an alert, or did not answer as often as it was tried."""

    code = "alert-undelivered"
    outcome = Outcome.RETRY
    default_hint = "Check monitor.webhook_url; the alert is in the log and is sent again at the next look."


class BadFrame(TailraceError):
    """A peer sent bytes that are no message of the wire protocol, or did not send them in time."""

    code = "bad-frame"
    default_hint = "The peer was dropped; check that it is a MongoDB driver, and that both sides agree about TLS."


class RecordingInvalid(TailraceError):
    """A recording cannot be read, or does not hold what was asked of it."""

    code = "recording-invalid"
    default_hint = "Check the line that the message names; an extra file needs its main file beside it."


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
        return self._server_code_name or name_of(self.server_code)


class StreamRefused(ChangeStreamError):
    """A stream cannot be opened with this namespace, these options or this pipeline."""

    code = "stream-refused"
    default_hint = "Change the option or the stage that the message names."


class PipelineUnsupported(StreamRefused):
    """A stage of the user's pipeline is none that the engine knows; the server may."""

    code = "pipeline-unsupported"
    default_hint = "Open this stream on the server itself (`--source change-stream`), or write the stage otherwise."


class InvalidResumeToken(ChangeStreamError):
    """A resume token is not one, or may not be used like this."""

    code = "resume-token-invalid"
    server_code = 260
    default_hint = "Look inside with `tailrace token decode`; use startAfter after an invalidate event."


class HistoryLost(ChangeStreamError):
    """The oplog no longer reaches back to the position."""

    code = "history-lost"
    outcome = Outcome.RECOVER
    server_code = 286
    labels = ("NonResumableChangeStreamError",)
    default_hint = "Events are missing from here on: take a snapshot, and enlarge the oplog."


class StreamFatal(ChangeStreamError):
    """The position is not in the stream, or the pipeline destroyed the positions."""

    code = "stream-fatal"
    server_code = 280
    labels = ("NonResumableChangeStreamError",)
    default_hint = "Check that the token comes from this namespace, and that no stage changes `_id`."


class PipelineFailed(ChangeStreamError):
    """A stage of the user's pipeline failed on an event, with the code the server would give."""

    code = "pipeline-failed"
    default_hint = "Change the stage so that it can handle the event, for example with $ifNull or onError."


class ImageMissing(ChangeStreamError):
    """A pre- or post-image was required, and there is none."""

    code = "image-missing"
    server_code = 47
    default_hint = "Enable changeStreamPreAndPostImages, or ask for `whenAvailable`."


class EventTooLarge(ChangeStreamError):
    """An event, or a part of one that cannot be split, is over 16 MB."""

    code = "event-too-large"
    server_code = 10334
    default_hint = "Project the large fields away, or add $changeStreamSplitLargeEvent (6.0.9 and later)."


class ResumeTokenMissing(TailraceError):
    """An event came without a resume token, so that nobody could continue after it."""

    code = "resume-token-missing"
    default_hint = "Keep `_id` in every stage of the pipeline; only the fields beside it may be removed."


class CaptureError(TailraceError):
    """Something about a position, a format or a sink of a capture."""

    code = "capture-error"


class StoreUnavailable(CaptureError):
    """The place where positions are kept does not answer, or cannot write."""

    code = "position-store-unavailable"
    outcome = Outcome.RETRY
    default_hint = "Check capture.position_store and that its server runs or its disk has room."


class PositionInvalid(CaptureError):
    """A position cannot be read, or would go back without a reason."""

    code = "position-invalid"
    default_hint = "Look at it with `tailrace position show` and at its past with `tailrace position history`."


class LeaseHeld(CaptureError):
    """Another writer moves this position; it may be asked for again after `retry_after` seconds."""

    code = "lease-held"
    outcome = Outcome.RETRY
    default_hint = "Stop the other process, or use another name; a dead one is replaced when its lease ends."

    def __init__(self, name: str, *, holder: str, retry_after: float) -> None:
        super().__init__(f"{name} is in use by {holder}", holder=holder, retry_after=retry_after)
        self.holder = holder
        self.retry_after = retry_after


class LeaseLost(CaptureError):
    """Another writer took over; what this one still wants to write is refused."""

    code = "lease-lost"
    default_hint = "End this process: the other one goes on. If there is no other, start it again."


class LeaseExpired(CaptureError):
    """This writer slept, or waited for its store, for so long that another one may have taken over."""

    code = "lease-expired"
    outcome = Outcome.RETRY
    default_hint = (
        "Nothing need be done: it goes on if nobody took over. If it comes often, raise capture.lease_seconds."
    )


class Backpressure(CaptureError):
    """A sink's buffer is full: nothing was taken; try again after `retry_after` seconds."""

    code = "backpressure"
    outcome = Outcome.RETRY
    default_hint = "Nothing need be done: reading waits until the sink has caught up."

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message, retry_after=retry_after)
        self.retry_after = retry_after


class SinkUnavailable(CaptureError):
    """A sink does not answer or lost what it was given; deliver again from the last position."""

    code = "sink-unavailable"
    outcome = Outcome.RETRY
    default_hint = "Check that the sink's server runs; delivery goes on from the last position."


class RecordRefused(CaptureError):
    """A record that the other side will never take, where dead letters are switched off."""

    code = "record-refused"
    default_hint = "Raise the limit that the message names, or set capture.dead_letters."


class HandlerFailed(CaptureError):
    """The application's handler raised for an event, as often as it was tried; the position is before the event."""

    code = "handler-failed"
    default_hint = "Its cause is the handler's own error; correct the handler, or give `dead_letters` to go on without."


class EventUnconvertible(CaptureError):
    """A format cannot express this event."""

    code = "event-unconvertible"
    default_hint = "The event is in the dead letters; another format, such as bson, takes every event."


class TokenQuarantined(TailraceError):
    """A token that a server answered with ChangeStreamHistoryLost would be sent once more."""

    code = "token-quarantined"
    outcome = Outcome.RECOVER
    default_hint = "The history after it is lost: run `tailrace recover`, after `tailrace gaps` to see what is missing."


class StreamInvalidated(TailraceError):
    """A stream ended with an invalidate event, and the server does not let it go on behind that."""

    code = "stream-invalidated"
    outcome = Outcome.RECOVER
    default_hint = "Run `tailrace recover`; a stream of cluster scope (the default) is never invalidated."


class EventUnreadable(TailraceError):
    """No form of an event fits into 16 MB: its `_id` is so large that token and documentKey alone do not."""

    code = "event-unreadable"
    outcome = Outcome.RECOVER
    default_hint = "Run `tailrace recover`: documents are read again, and the stream begins behind the event."


class GapOpen(TailraceError):
    """A gap is in the ledger, and the stream was told not to recover by itself."""

    code = "gap-open"
    outcome = Outcome.RECOVER
    default_hint = "Look at it with `tailrace gaps`, then run `tailrace recover --dry-run` and `tailrace recover`."


class ControlRefused(TailraceError):
    """A running process does not do what it is asked over HTTP; `status` is the answer's status code."""

    code = "control-refused"
    default_hint = "GET /state shows what the process is doing."

    def __init__(self, message: str, *, status: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, status=status)
        self.status = status


class AuditUnavailable(TailraceError):
    """What somebody asks for cannot be written to the audit log, so it is not done."""

    code = "audit-unavailable"
    default_hint = "Check audit.log: its file must be writable, or its broker answer."


class GapUnknown(TailraceError):
    """The ledger has no gap of this number."""

    code = "gap-unknown"
    default_hint = "List them with `tailrace gaps`."


class InventoryMissing(TailraceError):
    """Deletes made in a gap cannot be found: there is no record of the keys that were captured before it."""

    code = "inventory-missing"
    default_hint = "Use a Kafka sink with a retained topic, or set capture.inventory to a folder for the next time."


class FeatureStoreUnavailable(TailraceError):
    """The Redis that holds the features does not answer."""

    code = "feature-store-unavailable"
    outcome = Outcome.RETRY
    default_hint = "Check features.redis_url and that this Redis runs."


class FeaturesMixed(TailraceError):
    """Under this name Redis has features that were computed by another definition."""

    code = "features-mixed"
    default_hint = "Give the changed definition a new name: it is filled beside the old one, and readers move over."


class FeaturesUnknown(TailraceError):
    """Nobody has written features of this name."""

    code = "features-unknown"
    default_hint = "Check the prefix, and that `tailrace features` runs with this Redis."


class FeaturesLost(TailraceError):
    """Redis has lost what was written to it, so that its features are no longer those of the documents."""

    code = "features-lost"
    outcome = Outcome.RECOVER
    default_hint = "Run `tailrace features --backfill` with a new checkpoint, and let Redis keep an append-only file."


class DiskFull(TailraceError):
    """A job cannot write its checkpoint, its tables or what it keeps meanwhile."""

    code = "disk-full"
    default_hint = "Make room, or move spark.checkpoints or the tables; the job goes on from its checkpoint."


class FormatMismatch(TailraceError):
    """No record of a batch can be read: they are of another format than the job was told."""

    code = "format-mismatch"
    default_hint = "Give the format of the producer with --format; nothing was skipped."


class CheckpointMissing(TailraceError):
    """A job has written before, and there is no checkpoint that says where it goes on."""

    code = "checkpoint-missing"
    default_hint = "Name the checkpoint that the job had, or begin anew with --backfill."


class SchemaDrifted(TailraceError):
    """A document has a field that its strict table does not take."""

    code = "schema-drift"
    default_hint = "Declare the field in warehouse.declared, or set on_drift or the contract; it goes on from there."


class RebuildIncomplete(TailraceError):
    """The retained topics do not tell every document as a whole, so the mirror was left as it is."""

    code = "rebuild-incomplete"
    default_hint = "Take a new snapshot into the topics (`tailrace snapshot`), or swap all the same with --force."


class TableChanged(TailraceError):
    """A table changed while another was built to take its place, which was therefore not put there."""

    code = "table-changed"
    outcome = Outcome.RETRY
    default_hint = "Stop `tailrace warehouse run` while a table is rebuilt, then run the rebuild again."


class QueryFailed(TailraceError):
    """A streaming query of Spark fails again and again, for a reason that is not ours."""

    code = "query-failed"
    outcome = Outcome.RETRY
    default_hint = "Run it with --debug to see Spark's own story; it goes on from its checkpoint."


class SqlRefused(TailraceError):
    """A query that is no SQL, changes something, or names what is not there."""

    code = "sql-refused"
    default_hint = "`tailrace warehouse tables` lists the tables, `tailrace sql --describe db.table` their columns."


class AlreadyUp(TailraceError):
    """Another `tailrace up` runs in this folder."""

    code = "already-up"
    default_hint = "Stop the other one, or give this one a folder of its own with --folder."


class PartGaveUp(TailraceError):
    """A part of `tailrace up` ended as often as it was started, or in a way that starting it again cannot mend."""

    code = "part-gave-up"
    default_hint = "Read its log, which the message names; what it last said is shown above."


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
