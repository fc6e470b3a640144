"""What each of MongoDB's error codes is called and means for a reader: the only table of them.

Drivers, the oplog tail, the gateway and capture each act on sets of codes. The sets are defined here once and built
on each other, so that a code which a new server brings is added in one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NAMES: Final = {
    1: "InternalError", 2: "BadValue", 6: "HostUnreachable", 7: "HostNotFound", 8: "UnknownError", 9: "FailedToParse",
    13: "Unauthorized", 14: "TypeMismatch", 15: "Overflow", 18: "AuthenticationFailed", 20: "IllegalOperation",
    22: "InvalidBSON", 26: "NamespaceNotFound", 43: "CursorNotFound", 46: "LockBusy", 47: "NoMatchingDocument",
    50: "MaxTimeMSExpired", 63: "StaleShardVersion", 72: "InvalidOptions", 73: "InvalidNamespace", 89: "NetworkTimeout",
    91: "ShutdownInProgress", 94: "NotYetInitialized", 112: "WriteConflict", 115: "CommandNotSupported",
    133: "FailedToSatisfyReadPreference", 134: "ReadConcernMajorityNotAvailableYet", 136: "CappedPositionLost",
    143: "CursorInUse", 146: "ExceededMemoryLimit", 150: "StaleEpoch", 159: "DurationOverflow",
    166: "CommandNotSupportedOnView", 168: "InvalidPipelineOperator", 175: "QueryPlanKilled", 189: "PrimarySteppedDown",
    202: "NetworkInterfaceExceededTimeLimit", 209: "StaleClusterTime", 224: "QueryFeatureNotAllowed",
    234: "RetryChangeStream", 237: "CursorKilled", 238: "NotImplemented", 239: "SnapshotTooOld",
    241: "ConversionFailure", 246: "SnapshotUnavailable", 249: "StaleDbVersion", 260: "InvalidResumeToken",
    262: "ExceededTimeLimit", 280: "ChangeStreamFatalError", 286: "ChangeStreamHistoryLost",
    334: "MechanismUnavailable", 347: "APIMismatchError", 352: "UnsupportedOpQueryCommand",
    462: "IngressRequestRateLimitExceeded", 9001: "SocketException", 10107: "NotWritablePrimary",
    10334: "BSONObjectTooLarge", 11600: "InterruptedAtShutdown", 11601: "Interrupted",
    11602: "InterruptedDueToReplStateChange", 13388: "StaleConfig", 13435: "NotPrimaryNoSecondaryOk",
    13436: "NotPrimaryOrSecondary",
}  # fmt: skip

BAD_VALUE: Final = 2
HOST_UNREACHABLE: Final = 6
UNKNOWN_ERROR: Final = 8
FAILED_TO_PARSE: Final = 9
UNAUTHORIZED: Final = 13
TYPE_MISMATCH: Final = 14
OVERFLOW: Final = 15
AUTHENTICATION_FAILED: Final = 18
ILLEGAL_OPERATION: Final = 20
INVALID_BSON: Final = 22
NAMESPACE_NOT_FOUND: Final = 26
CURSOR_NOT_FOUND: Final = 43
NO_MATCHING_DOCUMENT: Final = 47
MAX_TIME_MS_EXPIRED: Final = 50
COMMAND_NOT_SUPPORTED: Final = 115
CAPPED_POSITION_LOST: Final = 136
EXCEEDED_MEMORY_LIMIT: Final = 146
DURATION_OVERFLOW: Final = 159
INVALID_PIPELINE_OPERATOR: Final = 168
STALE_CLUSTER_TIME: Final = 209
NOT_IMPLEMENTED: Final = 238
CONVERSION_FAILURE: Final = 241
SNAPSHOT_UNAVAILABLE: Final = 246
INVALID_RESUME_TOKEN: Final = 260
CHANGE_STREAM_FATAL_ERROR: Final = 280
CHANGE_STREAM_HISTORY_LOST: Final = 286
NOT_WRITABLE_PRIMARY: Final = 10107
BSON_OBJECT_TOO_LARGE: Final = 10334
INTERRUPTED_AT_SHUTDOWN: Final = 11600
STALE_CONFIG: Final = 13388
ONLY_ON_REPLICA_SETS: Final = 40573

NOT_PRIMARY: Final = frozenset({91, 189, 10107, 11600, 11602, 13435, 13436})
"""Whoever answered is no primary, or stops being one."""
RESUMABLE: Final = NOT_PRIMARY | {6, 7, 63, 89, 133, 150, 234, 262, 9001, 13388}
"""The specification's list of codes after which a driver resumes a change stream; servers since 4.4 add a label."""
STARTING_UP: Final = frozenset({94, 134, 202, 246})
"""A node that has just started, or a set without a majority yet: the same command succeeds soon."""
STALE_VERSIONS: Final = frozenset({63, 150, 249, 13388})
"""A shard knows another version of the collection or database: ask the config servers again."""
CURSOR_GONE: Final = frozenset({43, 136, 175, 237, 11601})
"""The cursor is lost, the position is not."""
NEVER_RESUMABLE: Final = frozenset({136, 237, 11601})
"""What the specification has drivers give up on, although a new cursor at the same position may succeed."""
PASSING: Final = RESUMABLE | STARTING_UP | STALE_VERSIONS | {46, 50, 112, 239, 462}
"""The server or its primary is changing, or cannot be reached now."""
PASSING_FOR_A_TAIL: Final = RESUMABLE | CURSOR_GONE | {134, 246}
"""Codes after which the same read of the oplog may succeed: elections, rollbacks, restarts, lost cursors."""
HISTORY_LOST: Final = frozenset({286, 40576, 40585, 40615})
"""The oplog begins after the position."""
TOKEN_NOT_UNDERSTOOD: Final = frozenset({260, 40647, 40649, 50795, 50811})
"""A token of another release, as after a downgrade."""
FOR_A_PERSON: Final = frozenset({2, 9, 13, 14, 18, 47, 72, 280})
"""The user, the pipeline or the options have to be changed first."""


def name_of(code: int) -> str:
    """Give the name MongoDB has for a code; those without a name are `Location<code>`."""
    return NAMES.get(code, f"Location{code}")


def named(codes: Iterable[int]) -> dict[int, str]:
    """Give codes with their names, in order."""
    return {code: name_of(code) for code in sorted(codes)}
