"""The specification's tests in the unified format, as far as tests of change streams need it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from bson import SON
from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, NotPrimaryError, OperationFailure, PyMongoError

from driver.shells import SHELLS, Recorder, Shell
from driver.spec_cases import Case, Server, drop_collections, load, parameters
from driver.unified_match import matches

FOLDERS = ("unified", "unified-2023-08_428011136", "related")
SLOWER = 4
"""Tests of time limits tell 200 ms from 250 ms; this gives a busy machine room without changing their sense."""
INTERNAL = {"hello", "ismaster", "isMaster", "endSessions", "configureFailPoint"}


def _requirements(case: Case) -> Iterator[list[Mapping[str, Any]]]:
    yield case.header.get("runOnRequirements", [])
    yield case.test.get("runOnRequirements", [])


@pytest.mark.parametrize(("case", "server", "shell_name"), parameters(load(*FOLDERS), _requirements))
def test_unified(case: Case, server: Server, shell_name: str, spec_uri: Callable[..., str]) -> None:
    run_unified(case, SHELLS[shell_name](), spec_uri(server.version, server.topology))


def run_unified(case: Case, shell: Shell, uri: str) -> None:
    """Run one test against the server behind a URI."""
    run = UnifiedRun(case, shell, uri)
    try:
        run.prepare()
        for operation in case.test["operations"]:
            run.operate(operation)
        run.check_events()
    finally:
        run.close()


class UnifiedRun:
    """The entities of one test and what may be done with them."""

    def __init__(self, case: Case, shell: Shell, uri: str) -> None:
        self.case = case
        self.shell = shell
        self.uri = uri
        self.global_client = MongoClient[dict[str, Any]](uri)
        self.entities: dict[str, Any] = {}
        self.recorders: dict[str, Recorder] = {}
        self.ignored: dict[str, set[str]] = {}
        self.streams: list[Any] = []
        self.fail_points: list[str] = []

    # --- before and after

    def prepare(self) -> None:
        for data in self.case.header.get("initialData", []):
            database = self.global_client[data["databaseName"]]
            drop_collections(database)
            database.create_collection(data["collectionName"])
            if data["documents"]:
                database[data["collectionName"]].insert_many(data["documents"])
        self.create(self.case.header["createEntities"])

    def create(self, entities: list[Mapping[str, Any]]) -> None:
        for entity in entities:
            ((kind, fields),) = entity.items()
            self.entities[fields["id"]] = getattr(self, f"_make_{kind}")(fields)

    def close(self) -> None:
        for name in self.fail_points:
            self.global_client.admin.command(SON([("configureFailPoint", name), ("mode", "off")]))
        for stream in self.streams:
            stream.close()
        for name in self.recorders:
            self.shell.call(self.entities[name].close)
        self.global_client.close()
        self.shell.close()

    def _make_client(self, fields: Mapping[str, Any]) -> Any:
        recorder = Recorder()
        self.recorders[fields["id"]] = recorder
        self.ignored[fields["id"]] = {*fields.get("ignoreCommandMonitoringEvents", []), *INTERNAL}
        return self.shell.connect(self.uri, event_listeners=[recorder], **fields.get("uriOptions", {}))

    def _make_database(self, fields: Mapping[str, Any]) -> Any:
        return self.entities[fields["client"]][fields["databaseName"]]

    def _make_collection(self, fields: Mapping[str, Any]) -> Any:
        return self.entities[fields["database"]][fields["collectionName"]]

    # --- operations

    def operate(self, operation: Mapping[str, Any]) -> None:
        expected_error = operation.get("expectError")
        try:
            result = self._perform(operation)
        except (PyMongoError, ValueError) as error:
            if expected_error is None:
                raise
            check_error(expected_error, error)
            return
        assert expected_error is None, f"{operation['name']} did not fail with {expected_error}, but gave {result}"
        if "saveResultAsEntity" in operation:
            self.entities[operation["saveResultAsEntity"]] = result
        if "expectResult" in operation:
            matches(operation["expectResult"], result)

    def _perform(self, operation: Mapping[str, Any]) -> Any:
        name = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", operation["name"])
        target = None if operation["object"] == "testRunner" else self.entities[operation["object"]]
        return getattr(self, f"_do_{name}")(target, operation.get("arguments", {}))

    def _do_create_entities(self, _: Any, given: Mapping[str, Any]) -> None:
        self.create(given["entities"])

    def _do_fail_point(self, _: Any, given: Mapping[str, Any]) -> None:
        command = given["failPoint"]
        if "blockTimeMS" in command.get("data", {}):
            command = {**command, "data": {**command["data"], "blockTimeMS": SLOWER * command["data"]["blockTimeMS"]}}
        self.fail_points.append(command["configureFailPoint"])
        self.shell.call(self.entities[given["client"]].admin.command, self.shell.limited(command))

    def _do_create_change_stream(self, target: Any, given: Mapping[str, Any]) -> Any:
        options = {_snake(name): value for name, value in given.items() if name != "pipeline"}
        if options.get("timeout_ms", 0) >= 100:  # smaller ones are refused before any time passes
            options["timeout_ms"] *= SLOWER
        stream = self.shell.watch(target, given["pipeline"], rules=self.case.rules, **options)
        self.streams.append(stream)
        return stream

    def _do_iterate_until_document_or_error(self, stream: Any, _: Any) -> Any:
        return stream.next()

    def _do_iterate_once(self, stream: Any, _: Any) -> Any:
        return stream.try_next()

    def _do_insert_one(self, collection: Any, given: Mapping[str, Any]) -> Any:
        self.shell.call(collection.insert_one, dict(given["document"]))

    def _do_update_one(self, collection: Any, given: Mapping[str, Any]) -> Any:
        self.shell.call(collection.update_one, given["filter"], given["update"])

    def _do_replace_one(self, collection: Any, given: Mapping[str, Any]) -> Any:
        self.shell.call(collection.replace_one, given["filter"], given["replacement"])

    def _do_delete_one(self, collection: Any, given: Mapping[str, Any]) -> Any:
        self.shell.call(collection.delete_one, given["filter"])

    def _do_rename(self, collection: Any, given: Mapping[str, Any]) -> Any:
        self.shell.call(collection.rename, given["to"], dropTarget=given.get("dropTarget", False))

    def _do_create_collection(self, database: Any, given: Mapping[str, Any]) -> Any:
        options = {name: value for name, value in given.items() if name != "collection"}
        self.shell.call(database.create_collection, given["collection"], **options)

    def _do_drop_collection(self, database: Any, given: Mapping[str, Any]) -> Any:
        self.shell.call(database.drop_collection, given["collection"])

    def _do_create_index(self, collection: Any, given: Mapping[str, Any]) -> Any:
        self.shell.call(collection.create_index, list(given["keys"].items()), name=given["name"])

    def _do_drop_index(self, collection: Any, given: Mapping[str, Any]) -> Any:
        self.shell.call(collection.drop_index, given["name"])

    def _do_run_command(self, database: Any, given: Mapping[str, Any]) -> Any:
        return self.shell.call(database.command, dict(given["command"]))

    # --- events

    def check_events(self) -> None:
        for expected in self.case.test.get("expectEvents", []):
            ignored = self.ignored[expected["client"]]
            events = [
                event for event in self.recorders[expected["client"]].commands if event.command_name not in ignored
            ]
            if expected.get("ignoreExtraEvents"):
                assert len(events) >= len(expected["events"])
                events = events[: len(expected["events"])]
            assert len(events) == len(expected["events"]), [dict(event.command) for event in events]
            for wanted, event in zip(expected["events"], events, strict=True):
                fields = wanted["commandStartedEvent"]
                matches(fields.get("command", {}), dict(event.command))
                assert fields.get("commandName", event.command_name) == event.command_name
                assert fields.get("databaseName", event.database_name) == event.database_name


def check_error(expected: Mapping[str, Any], error: Exception) -> None:
    """Assert that an error is of the kind that the test names."""
    details = getattr(error, "details", None) or {}
    is_server_error = isinstance(error, OperationFailure | NotPrimaryError)
    if "isClientError" in expected:
        is_network_error = isinstance(error, ConnectionFailure) and not is_server_error
        assert (is_network_error or not is_server_error) == expected["isClientError"], error
    if "isTimeoutError" in expected:
        assert getattr(error, "timeout", False) == expected["isTimeoutError"], error
    if "errorCode" in expected:
        assert details.get("code") == expected["errorCode"], error
    if "errorCodeName" in expected:
        assert details.get("codeName") == expected["errorCodeName"], error
    for label in expected.get("errorLabelsContain", []):
        assert isinstance(error, PyMongoError)
        assert error.has_error_label(label), error


def _snake(name: str) -> str:
    return re.sub("(?<=[a-z])[A-Z]+", lambda letters: f"_{letters[0].lower()}", name)
