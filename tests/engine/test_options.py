"""Commands are read, and refused, as each server does."""

from __future__ import annotations

import re
from typing import Any

import pytest
from bson.timestamp import Timestamp

from tailrace.engine import Dialect, parse_command
from tailrace.engine.scope import ScopeKind
from tailrace.errors import ChangeStreamError, InvalidResumeToken, StreamRefused

INVALIDATE = {"_data": "826AFA04B80000007D2B022C0100296F04"}
HIGH_WATER_MARK = {"_data": "826AFA04B8000000AE2B0229296E04"}
NO_UUID = {"_data": "826AFA04B80000007D2B022C0100296E04"}


def parse(options: Any, *stages: Any, database: str = "shop", target: Any = "orders", version: str = "6.0.5") -> Any:
    pipeline = [{"$changeStream": options}, *stages]
    return parse_command({"aggregate": target, "pipeline": pipeline, "cursor": {}}, database, Dialect.of(version))


def test_the_three_scopes() -> None:
    assert parse({}).scope.kind is ScopeKind.COLLECTION
    assert parse({}, target=1).scope.kind is ScopeKind.DATABASE
    assert parse({"allChangesForCluster": True}, database="admin", target=1).scope.kind is ScopeKind.CLUSTER


def test_options_that_are_null_were_not_given() -> None:
    options = parse({"resumeAfter": None, "fullDocument": None, "startAtOperationTime": None}).options
    assert (options.token, options.full_document, options.start_at_operation_time) == (None, "default", None)


def test_tokens_are_looked_into() -> None:
    spec = parse({"startAfter": INVALIDATE})
    assert spec.start_token is not None
    assert spec.start_token.from_invalidate
    assert parse({"resumeAfter": HIGH_WATER_MARK}).start_token.is_high_water_mark


def test_some_pipelines_ask_for_newer_tokens() -> None:
    split = {"$changeStreamSplitLargeEvent": {}}
    assert parse({}, split, version="6.0.27").token_version == 2
    assert parse({}, version="6.0.27").token_version is None


@pytest.mark.parametrize(
    ("code", "version", "arguments"),
    [
        (40415, "6.0.5", {"options": {"bogus": 1}}),
        (40415, "4.2.6", {"options": {"fullDocumentBeforeChange": "off"}}),
        (40415, "5.0.4", {"options": {"showExpandedEvents": True}}),
        (14, "6.0.5", {"options": {"fullDocument": 1}}),
        (14, "6.0.5", {"options": {"startAtOperationTime": 5}}),
        (14, "6.0.5", {"options": {"showExpandedEvents": 1}}),
        (2, "6.0.5", {"options": {"fullDocument": "bogus"}}),
        (2, "5.0.4", {"options": {"fullDocument": "whenAvailable"}}),
        (40575, "4.4.2", {"options": {"fullDocument": "bogus"}}),
        (2, "4.4.2", {"options": {"fullDocumentBeforeChange": "bogus"}}),
        (50865, "6.0.5", {"options": {"resumeAfter": HIGH_WATER_MARK, "startAfter": HIGH_WATER_MARK}}),
        (40674, "6.0.5", {"options": {"resumeAfter": HIGH_WATER_MARK, "startAtOperationTime": Timestamp(1, 1)}}),
        (6188500, "6.0.5", {"options": "x"}),
        (50808, "5.0.4", {"options": None}),
        (72, "6.0.5", {"options": {"allChangesForCluster": True}}),
        (72, "6.0.5", {"options": {"allChangesForCluster": True}, "database": "admin"}),
        (73, "6.0.5", {"options": {}, "database": "config"}),
        (73, "6.0.5", {"options": {}, "target": "system.js"}),
        (73, "6.0.5", {"options": {}, "target": ""}),
        (260, "6.0.5", {"options": {"resumeAfter": INVALIDATE}}),
        (260, "6.0.5", {"options": {"resumeAfter": NO_UUID}}),
        (50795, "5.0.4", {"options": {"resumeAfter": {"_data": "826AFA04B8000000AE2B0429296E1404"}}}),
    ],
)
def test_refusals_have_the_servers_codes(code: int, version: str, arguments: dict[str, Any]) -> None:
    arguments = dict(arguments)
    with pytest.raises(ChangeStreamError) as refused:
        parse(arguments.pop("options"), version=version, **arguments)
    assert refused.value.server_code == code


@pytest.mark.parametrize(
    ("code", "version", "database", "stage"),
    [
        (40602, "6.0.5", "shop", {"$changeStream": {}}),
        (31321, "6.0.5", "admin", {"$out": "x"}),
        (31320, "4.4.2", "admin", {"$merge": {"into": "x"}}),
        (51047, "6.0.5", "shop", {"$lookup": {"from": "x", "pipeline": [{"$changeStream": {}}], "as": "y"}}),
        (40600, "6.0.5", "shop", {"$facet": {"a": [{"$changeStream": {}}]}}),
        (7182800, "6.0.27", "shop", {"$changeStreamSplitLargeEvent": {"x": 1}}),
        (40323, "6.0.5", "shop", {"$match": {}, "$project": {}}),
        (14, "6.0.5", "shop", 5),
    ],
)
def test_stages_refused_before_they_are_compiled(code: int, version: str, database: str, stage: Any) -> None:
    is_cluster = database == "admin"
    options = {"allChangesForCluster": True} if is_cluster else {}
    with pytest.raises(StreamRefused) as refused:
        parse(options, stage, database=database, target=1 if is_cluster else "orders", version=version)
    assert refused.value.server_code == code


def test_a_pipeline_must_begin_with_the_change_stream() -> None:
    command = {"aggregate": "orders", "pipeline": [{"$match": {}}, {"$changeStream": {}}], "cursor": {}}
    with pytest.raises(StreamRefused, match="first stage"):
        parse_command(command, "shop", Dialect.of("5.0.4"))


def test_the_errors_are_named_as_the_server_names_them() -> None:
    with pytest.raises(StreamRefused) as older:
        parse({"bogus": 1}, version="6.0.5")
    with pytest.raises(StreamRefused) as newer:
        parse({"bogus": 1}, version="6.0.27")
    assert (older.value.server_code_name, newer.value.server_code_name) == ("Location40415", "IDLUnknownField")
    assert InvalidResumeToken("x").server_code_name == "InvalidResumeToken"


def test_an_oplog_that_nobody_checked_is_refused() -> None:
    for version in ("4.0.28", "7.1.0", "8.0.4", "6.0.27-rc1"):
        with pytest.raises(StreamRefused, match=re.escape(version)):
            Dialect.of(version)
    with pytest.raises(StreamRefused):
        Dialect.of("six")
    assert Dialect.of("6.0.27").version == (6, 0, 27)
