"""The specification's tests in their first format, run as its README describes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from driver.shells import SHELLS, Recorder, Shell
from driver.spec_cases import Case, Server, drop_collections, load, parameters

OPTIONS = {"batchSize": "batch_size"}
INTERNAL = {"hello", "ismaster", "isMaster", "endSessions"}


def _requirements(case: Case) -> Iterator[list[dict[str, Any]]]:
    test = case.test
    limits = {key: test[key] for key in ("minServerVersion", "maxServerVersion") if key in test}
    if "StaleShardVersion" in test["description"]:  # 7.0 labels its code no more, as later tests say
        limits.setdefault("maxServerVersion", "6.0.99")
    yield [{**limits, "topologies": test["topology"]}]


@pytest.mark.parametrize(("case", "server", "shell_name"), parameters(load("legacy"), _requirements))
def test_legacy(case: Case, server: Server, shell_name: str, spec_uri: Callable[..., str]) -> None:
    run_legacy(case, SHELLS[shell_name](), spec_uri(server.version, server.topology))


def run_legacy(case: Case, shell: Shell, uri: str) -> None:
    """Run one test against the server behind a URI."""
    with MongoClient[dict[str, Any]](uri) as global_client:
        try:
            _prepare(global_client, case, shell)
            _run(case, global_client, shell, uri)
        finally:
            _turn_off(global_client, case)
            shell.close()


def _prepare(client: MongoClient[dict[str, Any]], case: Case, shell: Shell) -> None:
    header = case.header
    for database, collection in (
        (header["database_name"], header["collection_name"]),
        (header.get("database2_name"), header.get("collection2_name")),
    ):
        if database is not None:
            drop_collections(client[database])
            client[database].create_collection(collection)
    if "failPoint" in case.test:
        client.admin.command(shell.limited(case.test["failPoint"]))


def _turn_off(client: MongoClient[dict[str, Any]], case: Case) -> None:
    if "failPoint" in case.test:
        client.admin.command({"configureFailPoint": case.test["failPoint"]["configureFailPoint"], "mode": "off"})


def _run(case: Case, global_client: MongoClient[dict[str, Any]], shell: Shell, uri: str) -> None:
    recorder = Recorder()
    client = shell.connect(uri, event_listeners=[recorder])
    changes: list[Any] = []
    error: PyMongoError | None = None
    stream = None
    try:
        stream = shell.watch(_target(client, case), case.test.get("changeStreamPipeline"), **_options(case))
        for operation in case.test["operations"]:
            _operate(global_client, operation)
        if "error" in case.test["result"]:
            stream.next()
        for _ in case.test["result"].get("success", []):
            changes.append(stream.next())
    except PyMongoError as raised:
        error = raised
    if stream is not None:
        stream.close()
    shell.call(client.close)

    result = case.test["result"]
    if error is not None:
        if "error" not in result:
            raise error
        matches(result["error"], _described(error))
    else:
        assert "error" not in result, f"expected {result['error']}, got {changes}"
        matches(result["success"], changes)
    _check_commands(case, recorder)


def _options(case: Case) -> dict[str, Any]:
    given = case.test.get("changeStreamOptions", {})
    return {"rules": case.rules, **{OPTIONS[name]: value for name, value in given.items()}}


def _target(client: Any, case: Case) -> Any:
    database = client[case.header["database_name"]]
    return {"client": client, "database": database, "collection": database[case.header["collection_name"]]}[
        case.test["target"]
    ]


def _operate(client: MongoClient[dict[str, Any]], operation: Mapping[str, Any]) -> None:
    collection = client[operation["database"]][operation["collection"]]
    given = operation.get("arguments", {})
    match operation["name"]:
        case "insertOne":
            collection.insert_one(dict(given["document"]))
        case "updateOne":
            collection.update_one(given["filter"], given["update"])
        case "replaceOne":
            collection.replace_one(given["filter"], given["replacement"])
        case "deleteOne":
            collection.delete_one(given["filter"])
        case "rename":
            collection.rename(given["to"])
        case "drop":
            collection.drop()
        case unknown:
            raise ValueError(f"unknown operation {unknown}")


def _described(error: PyMongoError) -> dict[str, Any]:
    assert isinstance(error, OperationFailure), error
    return {"code": error.code, "errorLabels": list((error.details or {}).get("errorLabels", []))}


def _check_commands(case: Case, recorder: Recorder) -> None:
    expectations = case.test.get("expectations") or []
    sent = [event for event in recorder.commands if event.command_name not in {"killCursors", *INTERNAL}]
    for index, expected in enumerate(expectations):
        event = sent[index]
        actual = {
            "command": dict(event.command),
            "command_name": event.command_name,
            "database_name": event.database_name,
        }
        matches(expected["command_started_event"], actual)


def matches(expected: Any, actual: Any) -> None:
    """Assert that `actual` MATCHES `expected`, as the README defines it."""
    if expected in (42, "42"):
        assert actual is not None
    elif isinstance(expected, Mapping):
        assert isinstance(actual, Mapping), f"{actual!r} is not a document like {expected!r}"
        for key, value in expected.items():
            if value is None:
                assert actual.get(key) is None, f"{key} is in {actual!r}"
            else:
                assert key in actual, f"{key} is not in {actual!r}"
                matches(value, actual[key])
    elif isinstance(expected, list):
        assert isinstance(actual, list), f"{actual!r} is not an array"
        assert len(actual) >= len(expected), f"{actual!r} is shorter than {expected!r}"
        for one, other in zip(expected, actual, strict=False):
            matches(one, other)
    else:
        assert _kind(actual) == _kind(expected), f"{actual!r} is not of the type of {expected!r}"
        assert actual == expected


def _kind(value: Any) -> type:
    """JSON has one type of number."""
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)
