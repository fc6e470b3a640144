"""What a client asks for: the `aggregate` command of a change stream, read as its server would.

Refusals have the server's codes and messages, because drivers and programs look at them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from tailrace.engine import refusals
from tailrace.engine.dialect import Dialect
from tailrace.engine.scope import INTERNAL_DATABASES, Scope
from tailrace.raw.bson_types import type_name
from tailrace.token.resume_token import ResumeToken, TokenData, TokenKind

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChangeStreamOptions:
    """The options of the `$changeStream` stage, under the names MongoDB has for them."""

    resume_after: ResumeToken | None = None
    start_after: ResumeToken | None = None
    start_at_operation_time: Timestamp | None = None
    full_document: str = "default"
    full_document_before_change: str = "off"
    show_expanded_events: bool = False
    show_system_events: bool = False
    show_migration_events: bool = False
    show_raw_update_description: bool = False
    all_changes_for_cluster: bool = False
    match_collection_uuid_for_update_lookup: bool = False
    allow_to_run_on_system_ns: bool = False
    allow_to_run_on_config_db: bool = False

    @property
    def token(self) -> ResumeToken | None:
        """Give the token to start from, whichever way it was given."""
        return self.resume_after or self.start_after


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream: what it watches, how, and the user's stages."""

    scope: Scope
    options: ChangeStreamOptions = ChangeStreamOptions()
    stages: Sequence[Document] = ()
    batch_size: int | None = None
    stage_seconds: float | None = None
    """The processor time that the stages may take for one event."""
    from_router: bool = False
    """A router merges the stream: events carry `$sortKey`, and topology changes are shown."""
    token_version: int | None = None
    """The version of the tokens, where the client asked for one."""
    start_token: TokenData | None = None
    """What is inside the token to start from."""
    served_by_shards: bool = False
    """The shards' own change streams are merged, in place of what the engine makes of their oplogs."""


_STRING, _OBJECT, _BOOL, _TIMESTAMP = "string", "object", "bool", "timestamp"
_OPTIONS: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "fullDocument": (_STRING, (4, 2)),
    "resumeAfter": (_OBJECT, (4, 2)),
    "startAfter": (_OBJECT, (4, 2)),
    "startAtOperationTime": (_TIMESTAMP, (4, 2)),
    "allChangesForCluster": (_BOOL, (4, 2)),
    "showMigrationEvents": (_BOOL, (4, 2)),
    "fullDocumentBeforeChange": (_STRING, (4, 4)),
    "allowToRunOnConfigDB": (_BOOL, (4, 4)),
    "allowToRunOnSystemNS": (_BOOL, (5, 0)),
    "showSystemEvents": (_BOOL, (6, 0)),
    "showExpandedEvents": (_BOOL, (6, 0)),
    "showRawUpdateDescription": (_BOOL, (6, 0)),
    "matchCollectionUUIDForUpdateLookup": (_BOOL, (6, 0, 6)),
}
"""The options: their types, and the version since which there are such."""
_STARTS: Final = ("resumeAfter", "startAfter")
_FULL_DOCUMENT: Final = ("default", "updateLookup", "whenAvailable", "required")
_NOT_GIVEN: Final = (None, False, _FULL_DOCUMENT[0], "off")
"""What an option is without being given; of later ones not every server knows the names."""
_BEFORE_CHANGE: Final = ("off", "whenAvailable", "required")
SPLIT: Final = "$changeStreamSplitLargeEvent"


def parse_command(command: Document, database: str, dialect: Dialect) -> StreamSpec:
    """Read an `aggregate` command whose pipeline begins with `$changeStream`."""
    target = command["aggregate"]
    collection = target if isinstance(target, str) else None
    if collection == "":
        raise refusals.invalid_namespace(database)
    pipeline = _pipeline(command)
    if not pipeline or "$changeStream" not in pipeline[0]:
        raise refusals.not_first(dialect)
    options = parse_options(pipeline[0]["$changeStream"], dialect)
    check_namespace(database, collection, options)
    start = read_token(options, dialect)
    _check_start(start, options, collection, pipeline, dialect)
    for stage in pipeline[1:]:
        _check_stage(stage, database, collection, dialect)
    return StreamSpec(
        scope=_scope(database, collection, options),
        options=options,
        stages=pipeline[1:],
        batch_size=command.get("cursor", {}).get("batchSize"),
        from_router=bool(command.get("fromMongos") and command.get("needsMerge")),
        token_version=_token_version(command, pipeline, dialect),
        start_token=start,
    )


def _token_version(command: Document, pipeline: Sequence[Document], dialect: Dialect) -> int | None:
    """Tell which version of tokens the client wants: by name, or by stages that only one has."""
    asks_for_version_2 = command.get("$_generateV2ResumeTokens")
    if dialect.refuses_to_be_asked_for_version_2:
        if asks_for_version_2:
            raise refusals.version_2_is_asked_for()
        return 1 if asks_for_version_2 is not None else None
    if asks_for_version_2 or (dialect.splits_large_events and any(SPLIT in stage for stage in pipeline)):
        return 2
    return None


def _pipeline(command: Document) -> list[Document]:
    pipeline = command.get("pipeline")
    if not isinstance(pipeline, list):
        raise refusals.pipeline_is_no_array()
    for stage in pipeline:
        if not isinstance(stage, Mapping):
            raise refusals.stage_is_no_object()
        if len(stage) != 1:
            raise refusals.stage_has_not_one_field()
    return list(pipeline)


def _scope(database: str, collection: str | None, options: ChangeStreamOptions) -> Scope:
    if collection is not None:
        return Scope.of_collection(database, collection)
    return Scope.of_cluster() if options.all_changes_for_cluster else Scope.of_database(database)


# --- the options


def parse_options(value: Any, dialect: Dialect) -> ChangeStreamOptions:
    """Read the argument of `$changeStream`; an option that is null is one that was not given."""
    if not isinstance(value, Mapping):
        raise refusals.argument_is_no_object(value, dialect)
    given = {name: option for name, option in value.items() if _is_given(name, option, dialect)}
    full_document = given.get("fullDocument", "default")
    if full_document not in (_FULL_DOCUMENT if dialect.since(6, 0) else _FULL_DOCUMENT[:2]):
        raise refusals.bad_full_document(full_document, dialect)
    before_change = given.get("fullDocumentBeforeChange", "off")
    if before_change not in _BEFORE_CHANGE:
        raise refusals.bad_choice("fullDocumentBeforeChange", before_change)
    if all(name in given for name in _STARTS):
        raise refusals.two_tokens()
    if "startAtOperationTime" in given and any(name in given for name in _STARTS):
        raise refusals.two_starts(dialect)
    return ChangeStreamOptions(
        resume_after=_token(given.get("resumeAfter")),
        start_after=_token(given.get("startAfter")),
        start_at_operation_time=given.get("startAtOperationTime"),
        full_document=full_document,
        full_document_before_change=before_change,
        show_expanded_events=given.get("showExpandedEvents", False),
        show_system_events=given.get("showSystemEvents", False),
        show_migration_events=given.get("showMigrationEvents", False),
        show_raw_update_description=given.get("showRawUpdateDescription", False),
        all_changes_for_cluster=given.get("allChangesForCluster", False),
        match_collection_uuid_for_update_lookup=given.get("matchCollectionUUIDForUpdateLookup", False),
        allow_to_run_on_system_ns=given.get("allowToRunOnSystemNS", False),
        allow_to_run_on_config_db=given.get("allowToRunOnConfigDB", False),
    )


def stage_of(spec: StreamSpec) -> Document:
    """Give the `$changeStream` stage that asks a server for a stream: what `parse_options` has read."""
    options = spec.options
    tokens = {"resumeAfter": options.resume_after, "startAfter": options.start_after}
    given: dict[str, Any] = {
        **{name: token and RawBSONDocument(token.to_bson()) for name, token in tokens.items()},
        "startAtOperationTime": options.start_at_operation_time,
        "fullDocument": options.full_document,
        "fullDocumentBeforeChange": options.full_document_before_change,
        "showExpandedEvents": options.show_expanded_events,
        "showSystemEvents": options.show_system_events,
        "showMigrationEvents": options.show_migration_events,
        "showRawUpdateDescription": options.show_raw_update_description,
        "allChangesForCluster": options.all_changes_for_cluster,
        "matchCollectionUUIDForUpdateLookup": options.match_collection_uuid_for_update_lookup,
        "allowToRunOnSystemNS": options.allow_to_run_on_system_ns,
        "allowToRunOnConfigDB": options.allow_to_run_on_config_db,
    }
    return {"$changeStream": {name: value for name, value in given.items() if value not in _NOT_GIVEN}}


def _is_given(name: str, option: Any, dialect: Dialect) -> bool:
    expected, since = _OPTIONS.get(name, ("", (99,)))
    if not dialect.since(*since):
        raise refusals.unknown_option(name, dialect)
    if option is None:
        return False
    if (found := type_name(option)) != expected:
        raise refusals.wrong_type(name, found, expected, dialect)
    return True


def _token(value: Document | None) -> ResumeToken | None:
    return None if value is None else ResumeToken.parse(value)


def read_token(options: ChangeStreamOptions, dialect: Dialect) -> TokenData | None:
    """Look inside the token to start from, and refuse to resume after an invalidate."""
    if options.token is None:
        return None
    data = options.token.decode(newest_version=dialect.newest_token_version, fragments=dialect.splits_large_events)
    if options.resume_after is not None and data.from_invalidate:
        raise refusals.resume_after_invalidate(dialect)
    return data


def _check_start(
    start: TokenData | None,
    options: ChangeStreamOptions,
    collection: str | None,
    pipeline: Sequence[Document],
    dialect: Dialect,
) -> None:
    """Refuse tokens that this stream can never meet."""
    if start is None or start.kind is not TokenKind.EVENT:
        return
    if options.resume_after is not None and collection is not None and start.uuid is None:
        raise refusals.no_uuid(dialect)
    if start.fragment is not None and not any(SPLIT in stage for stage in pipeline):
        raise refusals.fragment_without_split()


# --- namespaces and stages


def check_namespace(database: str, collection: str | None, options: ChangeStreamOptions) -> None:
    """Refuse the namespaces on which no stream can be opened."""
    if options.all_changes_for_cluster:
        if database != "admin" or collection is not None:
            raise refusals.cluster_stream_elsewhere(database, collection)
        return
    may_be_config = options.allow_to_run_on_config_db and database == "config"
    if database.encode() in INTERNAL_DATABASES and not may_be_config:
        raise refusals.internal_database(database)
    is_system = collection is not None and collection.startswith("system.")
    if is_system and not options.allow_to_run_on_system_ns:
        raise refusals.internal_collection(database, collection or "")


def _check_stage(stage: Document, database: str, collection: str | None, dialect: Dialect) -> None:
    """Refuse what the server refuses before it looks at which stages a change stream may have."""
    name, argument = next(iter(stage.items()))
    if name == "$changeStream":
        check_namespace(database, collection, parse_options(argument, dialect))
        raise refusals.not_first(dialect)
    if name == SPLIT and dialect.splits_large_events and argument != {}:
        raise refusals.split_with_argument()
    if name in ("$out", "$merge") and dialect.since(4, 4) and database.encode() in INTERNAL_DATABASES:
        raise refusals.writes_to_internal_database(name, database)
    if name == "$lookup" and _has_change_stream(_mapping(argument).get("pipeline")):
        raise refusals.in_lookup(dialect)
    if name == "$facet" and any(_has_change_stream(part) for part in _mapping(argument).values()):
        raise refusals.in_facet(dialect)


def _mapping(argument: Any) -> Document:
    return argument if isinstance(argument, Mapping) else {}


def _has_change_stream(pipeline: Any) -> bool:
    return isinstance(pipeline, list) and any("$changeStream" in _mapping(stage) for stage in pipeline)
