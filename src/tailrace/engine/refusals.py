"""Why a stream is not opened, in the words of each server."""

from __future__ import annotations

from typing import Any

from tailrace.engine.dialect import Dialect
from tailrace.errors import InvalidResumeToken, StreamFatal, StreamRefused


def not_first(dialect: Dialect) -> StreamRefused:
    """`$changeStream` stands behind another stage."""
    stage, end = _stage_name(dialect)
    return StreamRefused(f"{stage} is only valid as the first stage in a pipeline{end}", server_code=40602)


def in_lookup(dialect: Dialect) -> StreamRefused:
    """`$changeStream` stands inside a `$lookup`."""
    stage, _ = _stage_name(dialect)
    return StreamRefused(f"{stage} is not allowed within a $lookup's sub-pipeline", server_code=51047)


def in_facet(dialect: Dialect) -> StreamRefused:
    """`$changeStream` stands inside a `$facet`."""
    stage, _ = _stage_name(dialect)
    return StreamRefused(f"{stage} is not allowed to be used within a $facet stage", server_code=40600)


def _stage_name(dialect: Dialect) -> tuple[str, str]:
    """6.0 names the first of the stages that it makes of `$changeStream`."""
    return ("$_internalChangeStreamOplogMatch", "") if dialect.since(6, 0) else ("$changeStream", ".")


def pipeline_is_no_array() -> StreamRefused:
    """The pipeline is something else than a list."""
    return StreamRefused("'pipeline' option must be specified as an array", server_code=14)


def stage_is_no_object() -> StreamRefused:
    """A stage is something else than a document."""
    return StreamRefused("Each element of the 'pipeline' array must be an object", server_code=14)


def stage_has_not_one_field() -> StreamRefused:
    """A stage has no name, or several."""
    return StreamRefused("A pipeline stage specification object must contain exactly one field.", server_code=40323)


def argument_is_no_object(value: Any, dialect: Dialect) -> StreamRefused:
    """The argument of `$changeStream` is something else than a document."""
    if not dialect.since(6, 0):
        return StreamRefused("$changeStream stage expects a document as argument.", server_code=50808)
    shown = "null" if value is None else f'"{value}"' if isinstance(value, str) else str(value)
    return StreamRefused(
        f"$changeStream must take a nested object but found: $changeStream: {shown}", server_code=6188500
    )


def unknown_option(name: str, dialect: Dialect) -> StreamRefused:
    """There is no such option."""
    return StreamRefused(
        f"BSON field '$changeStream.{name}' is an unknown field.",
        server_code=40415,
        server_code_name="IDLUnknownField" if dialect.names_unknown_fields else None,
    )


def wrong_type(name: str, found: str, expected: str, dialect: Dialect) -> StreamRefused:
    """An option has a value of another type."""
    if expected == "bool" and dialect.since(5, 0):
        message = f"Field '{name}' should be a boolean value, but found: {found}"
    else:
        message = f"BSON field '$changeStream.{name}' is the wrong type '{found}', expected type '{expected}'"
    return StreamRefused(message, server_code=14)


def bad_full_document(value: str, dialect: Dialect) -> StreamRefused:
    """`fullDocument` has a value that the server does not know."""
    if dialect.since(5, 0):
        return bad_choice("fullDocument", value)
    quote = "'" if dialect.since(4, 4) else '"'
    return StreamRefused(
        "unrecognized value for the 'fullDocument' option to the $changeStream stage. "
        f"Expected {quote}default{quote} or {quote}updateLookup{quote}, got {quote}{value}{quote}",
        server_code=40575,
    )


def bad_choice(name: str, value: str) -> StreamRefused:
    """An option has a value that is not one of its choices."""
    return StreamRefused(
        f"Enumeration value '{value}' for field '$changeStream.{name}' is not a valid value.", server_code=2
    )


def two_tokens() -> StreamRefused:
    """Both tokens to start from are given."""
    return StreamRefused(
        "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage", server_code=50865
    )


def two_starts(dialect: Dialect) -> StreamRefused:
    """A token and a time to start from are given."""
    end = "" if dialect.since(6, 0) else "."
    return StreamRefused(f"Only one type of resume option is allowed, but multiple were found{end}", server_code=40674)


def resume_after_invalidate(dialect: Dialect) -> InvalidResumeToken:
    """Only `startAfter` can go on behind an invalidate."""
    end = "" if dialect.since(6, 0) else "."
    return InvalidResumeToken(
        f"Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification{end}"
    )


def no_uuid(dialect: Dialect) -> InvalidResumeToken:
    """The token is of a whole database's event, and cannot be one of a collection's stream."""
    end = "" if dialect.since(6, 0) else "."
    return InvalidResumeToken(
        f"Attempted to resume a single-collection stream, but the resume token does not include a UUID{end}"
    )


def version_2_is_asked_for() -> StreamRefused:
    """The client asks for the tokens that it would get anyway."""
    return StreamRefused("Invalid request for v2 tokens", server_code=6528200)


def fragment_without_split() -> StreamFatal:
    """The position is a part of an event, and the stream does not split events."""
    return StreamFatal(
        "To resume from a split event, the $changeStream pipeline must include a $changeStreamSplitLargeEvent stage"
    )


def invalid_namespace(database: str) -> StreamRefused:
    """The collection has no name."""
    return StreamRefused(f"Invalid namespace specified '{database}.'", server_code=73)


def cluster_stream_elsewhere(database: str, collection: str | None) -> StreamRefused:
    """The whole cluster can only be watched from one place."""
    return StreamRefused(
        "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' "
        f"database, and with no collection name; found {database}.{collection or '$cmd.aggregate'}",
        server_code=72,
    )


def internal_database(database: str) -> StreamRefused:
    """The database is the server's own."""
    return StreamRefused(f"$changeStream may not be opened on the internal {database} database", server_code=73)


def internal_collection(database: str, collection: str) -> StreamRefused:
    """The collection is the server's own."""
    return StreamRefused(
        f"$changeStream may not be opened on the internal {database}.{collection} collection", server_code=73
    )


def writes_to_internal_database(stage: str, database: str) -> StreamRefused:
    """`$out` and `$merge` are refused for their target before they are for the stream."""
    if stage == "$out":
        return StreamRefused(f"Can't $out to internal database: {database}", server_code=31321)
    return StreamRefused(f"Cannot $merge to internal database: {database}", server_code=31320)


def split_with_argument() -> StreamRefused:
    """`$changeStreamSplitLargeEvent` takes an empty document only."""
    return StreamRefused("$changeStreamSplitLargeEvent spec should be an empty object", server_code=7182800)
