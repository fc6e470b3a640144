"""Bad values for every setting and every flag, generated: each is an error with a code, none is `unexpected`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tailrace.cli.app import app, run
from tailrace.errors import QueryFailed
from tailrace.settings import describe
from tailrace.stand import ReplicaSet

FRAUD = Path(__file__).parents[2] / "examples" / "fraud_signals" / "features.toml"
TYPED = ("integer", "number", "true or false", "|", "table", "list")
FREE = {
    "capture.sink": ["nowhere", "kafka://", "kafka://127.0.0.1:1?acks=maybe", "kafka://h?y", "kafka://127.0.0.1:1?no.such.option=1",
                     "http://", "http://[", "kafka://[::1", "redis://[x]",
                     "redis://", "json:dumps", "no_such_module:Sink", "file:/proc/nothing/x"],
    "capture.format": ["xml", "json:no_such", "no_such_module:f", "math:pi", "flat"],
    "capture.position_store": ["nowhere", "file:/proc/nothing/x", "mongodb://", "kafka://", "redis://?x=y",
                               "postgresql://[", "redis://[", "kafka://[", ""],
    "capture.dead_letters": ["nowhere", "file:/proc/nothing/x"],
    "capture.pipeline": ["x", "{}", "[1]", '[{"$nope": 1}]', '[{"$match": {"$nope": 1}}]'],
    "capture.namespaces": [".", "/[/", "a.b.,"],
    "capture.slice": ["", "5/4", "x/y", "0/1"],
    "capture.name": ["~gaps", ""],
    "capture.inventory": ["/proc/nothing/x"],
    "capture.topic": ["{nothing}", ""],
    "mongodb.uri": ["", "nowhere", "mongodb://", "mongodb://h:99999/", "mongodb://h/?w=x&replicaSet=",
                    "mongodb+srv://nowhere.invalid/"],
    "gateway.certificate": ["/no/such/file"],
    "gateway.address": ["nonsense", " ", "", "[", "a" * 400, "256.0.0.1"],
    "monitor.metrics_address": ["256.0.0.1", "a" * 400],
    "dashboard.address": ["nonsense", "", "[", "a" * 400],
    "dashboard.certificate": ["/no/such/file"],
    "dashboard.key": ["/no/such/file", ""],
    "monitor.webhook_url": ["nowhere", "http://["],
    "registry.url": ["http://["],
    "audit.log": ["kafka://[", "kafka://h?y", "nowhere"],
    "telemetry.endpoint": ["http://[", "http://h:99999"],
    "capture.shards": ['{"a": "mongodb://["}'],
    "capture.transforms": ["x", "[{}]", '[{"kind": "rename-topic", "pattern": "(", "replacement": ""}]',
                           '[{"kind": "rename-topic", "pattern": "a", "replacement": "\\\\9"}]'],
    "capture.heartbeat_collection": ["x"],
    "capture.fields": [""],
    "policy.rules": ["x", "[{}]", '[{"fields": {"x": "y"}}]'],
    "gateway.shards": ['{"a": "mongodb://["}', '{"a": ""}'],
    "gateway.advertise": ["x", "["],
    "gateway.client_ca": ["/no/such/file"],
    "dashboard.token": ["short"],
    "dashboard.producers": ["http://h:99999", "http://h:x", ""],
    "features.redis_url": ["", "nowhere", "redis://h?x=y", "redis://h:99999", "unix://"],
    "features.kafka_servers": ["", "nowhere:x", "["],
    "warehouse.contracts": ['{"a": "x"}', "x"],
    "warehouse.columns": ['{"a.b": "x"}'],
    "warehouse.catalog_config": ['{"type": "x"}', '{"type": "jdbc", "uri": "jdbc:x"}'],
    "spark.driver_memory": ["", "x", "1"],
    "up.features": ["/no/such.toml", "/etc/passwd", "/", ""],
}  # fmt: skip
"""Values that have the right type and are wrong all the same."""
VERB_OF = {
    "gateway": ["serve", "--port", "0"],
    "dashboard": ["dashboard", "--port", "0"],
    "features": ["lookup", "fraud", "1"],
    "features.kafka_servers": ["features", str(FRAUD), "--topics", "a"],
    "warehouse": ["sql", "SELECT 1"],
    "spark": ["warehouse", "tables"],
    "up": ["up"],
}
INTERNAL = ("match pattern", "Input should", "Value error", "unable to parse", "Field required", "tuple", "dictionary",
            "instance of", "after validation", "must match", "valid string")  # fmt: skip
"""Words of a library about its own affairs."""
HUGE = ("inf", "nan", "1e12", "99999999999999999999", "-70000")
"""The last one is no port."""
SHOWN_ON_THE_PAGE = {"uri", "sink", "store", "redis", "warehouse", "address"}
"""Flags of the dashboard: what it cannot reach is no error, the page shows it with the reason."""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAILRACE_MONGODB__TIMEOUT_SECONDS", "0.3")
    monkeypatch.setenv("TAILRACE_CAPTURE__RETRY_SECONDS", "0.1")
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.05)  # a client that finds nobody ends sooner


def variable(key: str) -> str:
    return f"TAILRACE_{key.upper().replace('.', '__')}"


@pytest.mark.parametrize("key", [key for key, kind, *_ in describe() if any(word in kind for word in TYPED)])
@pytest.mark.parametrize("value", ["nonsense", "-1", "[", "inf", "nan", "1e12"])
def test_a_value_of_the_wrong_type_names_the_setting(
    key: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable(key), value)
    code = run(["settings", "--json"])
    complaint = capsys.readouterr().err
    kind = {name: kind for name, kind, *_ in describe()}[key]
    if code == 0:  # a list takes any text, a number may be negative
        assert "list" in kind or (value == "-1" and "> " not in kind), complaint
        return
    assert code == 64
    assert complaint.startswith("error[settings-invalid]")
    assert key in complaint or complaint.startswith(f"error[settings-invalid]: settings key {key.split('.')[0]}:")
    if "|" in kind:
        assert all(choice in complaint for choice in kind.split(" | "))


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in FREE.items() for value in values])
def test_a_text_that_means_nothing_is_no_unexpected_error(
    key: str,
    value: str,
    mongodb: ReplicaSet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TAILRACE_MONGODB__URI", mongodb.uri)
    monkeypatch.setenv("TAILRACE_CAPTURE__SINK", "file:out.jsonl")
    monkeypatch.setenv("TAILRACE_CAPTURE__NAMESPACES", "nothing.there")
    if key.startswith("monitor"):
        monkeypatch.setenv("TAILRACE_MONITOR__METRICS_PORT", "0")
    monkeypatch.setenv(variable(key), value)
    verb = VERB_OF.get(key) or VERB_OF.get(key.partition(".")[0]) or ["produce", "--until-idle"]
    if verb == ["up"]:  # it starts Kafka, and refuses any other sink first
        monkeypatch.delenv("TAILRACE_CAPTURE__SINK")
        monkeypatch.setattr(import_module("tailrace.up.run"), "fetch", refuse_to_start)
    code = run(verb)
    complaint = capsys.readouterr().err.splitlines()[-1:]
    assert code in (0, 64, 69, 78), complaint
    assert code == 0 or complaint[0].startswith("error["), complaint
    assert not any("error[unexpected]" in line for line in complaint), complaint
    assert code == 0 or not [word for word in INTERNAL if f" {word}" in complaint[0]], complaint
    if code == 64 and verb[0] == "produce":
        assert run(["doctor"]) in (2, 64), "doctor calls it fine"


def verbs(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Give every verb that does something, with the words that call it."""
    children = getattr(command, "commands", None)
    if children is None:
        yield words, command
        return
    for name, child in children.items():
        yield from verbs(child, (*words, name))


def bad_lines() -> Iterator[Any]:
    for words, command in verbs(get_command(app)):
        needed = [arg for each in command.params if each.required for arg in _given(each, "5")]
        for parameter in command.params:
            if getattr(parameter, "is_flag", False) or parameter.name in ("help", "output", "save_token"):
                continue
            if words == ("dashboard",) and parameter.name in SHOWN_ON_THE_PAGE:
                continue
            for value in ("nonsense", "", "[{", *(HUGE if takes_a_number(parameter) else ())):
                others = [] if parameter.required else needed
                line = [*words, *others, *_given(parameter, value)]
                yield pytest.param(line, id=" ".join([*words, parameter.name, repr(value)]))


def takes_a_number(parameter: Any) -> bool:
    return parameter.type_descriptor.annotation in (int, float)


def _given(parameter: Any, value: str) -> list[str]:
    return [value] if not parameter.opts[0].startswith("-") else [f"{parameter.opts[-1]}={value}"]


def refuse_to_start(*_: Any, **__: Any) -> Any:
    """Stand for Spark, or for a server, that does not start: a value that gets here is one that only it can judge."""
    raise QueryFailed("it is not started here")


@pytest.mark.parametrize("line", list(bad_lines()))
def test_a_bad_flag_is_no_unexpected_error(
    line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TAILRACE_MONGODB__URI", "mongodb://127.0.0.1:1")
    monkeypatch.setenv("TAILRACE_MONGODB__TIMEOUT_SECONDS", "0.05")  # nobody answers there
    monkeypatch.setenv("TAILRACE_FEATURES__REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("TAILRACE_CAPTURE__SINK", "stdout:")  # no broker to wait for
    monkeypatch.setattr("tailrace.cli.spark_session.spark_session", refuse_to_start)
    monkeypatch.setattr(import_module("tailrace.up.run"), "fetch", refuse_to_start)
    if line[0] == "up":  # it needs Kafka, and would refuse this sink before it looks at anything else
        monkeypatch.delenv("TAILRACE_CAPTURE__SINK")
    code = run(line)
    complaint = capsys.readouterr().err
    assert "error[unexpected]" not in complaint
    assert "Traceback" not in complaint
    assert code in (0, 1, 2, 64, 69, 78), complaint


@pytest.mark.parametrize(
    ("line", "environment"),
    [
        (["token", "decode", "abc"], {}),
        (["token", "decode", "{}"], {}),
        (["token", "decode", '{"_data": 5}'], {}),
        (["settings"], {"TAILRACE_MONITOR__CONTROL_TOKEN": "short"}),
        (["settings"], {"TAILRACE_MONITOR__CONTROL_TOKEN_FILE": "/no/such/file"}),
        (["position", "export", "--output", "/no/such/folder/x"], {}),
        (["settings", "--config", "/no/such/file.toml"], {}),
        (["settings", "--config", "/"], {}),
        (["settings"], {"TAILRACE_CAPTURE__NAME": "~gaps"}),
        (["settings"], {"TAILRACE_WAREHOUSE__CATALOG": "my lake"}),
        (["settings"], {"TAILRACE_DASHBOARD__PRODUCERS": "127.0.0.1:9464"}),
        (["watch", "a.b", "--save-token", "/no/such/folder/x"], {}),
        (["features", "export", str(FRAUD), "--as-of", "1h", "-o", "/no/such/folder/x.parquet"], {}),
        (["features", "export", str(FRAUD), "--as-of", "1h", "-o", "."], {}),
        (["watch", "a.b", "--log-level", "loud"], {}),
        (["check", "--watch", "--metrics-port", "99999"], {}),
    ],
)
def test_known_bad_lines(
    line: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TAILRACE_MONGODB__URI", "mongodb://127.0.0.1:1")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run(line) in (0, 64, 69, 78)
    complaint = capsys.readouterr().err
    assert "error[unexpected]" not in complaint
    assert not [word for word in INTERNAL if f" {word}" in complaint]


@pytest.mark.parametrize("sink", ["file:.", "file:/etc/passwd/x"])
def test_a_sink_that_cannot_be_a_file_is_not_waited_for(
    sink: str, mongodb: ReplicaSet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was tried again for ten minutes, as a disk that is full would be."""
    monkeypatch.setenv("TAILRACE_CAPTURE__RETRY_SECONDS", "600")
    assert run(["produce", "nothing.there", "--until-idle", "--uri", mongodb.uri, "--sink", sink]) == 64
    assert "error[settings-invalid]: capture.sink: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "store"),
    [
        (["position", "show"], "file:/etc/passwd"),
        (["gaps"], "file:/etc/passwd"),
        (["produce", "--until-idle", "--sink", "file:out.jsonl"], "file:/etc/passwd"),
        (["produce", "--until-idle", "--sink", "file:out.jsonl"], "file:/etc/passwd/x"),
        (["produce", "--until-idle", "--sink", "file:out.jsonl"], "file:/sys/nobody/may/write/here"),
    ],
)
def test_positions_are_not_kept_where_nobody_can(
    verb: list[str],
    store: str,
    mongodb: ReplicaSet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`position show` showed nothing, `gaps` said that there are none, and `produce` tried for ten minutes."""
    monkeypatch.setenv("TAILRACE_CAPTURE__RETRY_SECONDS", "600")
    monkeypatch.setenv("TAILRACE_MONGODB__URI", mongodb.uri)
    assert run([*verb, "--store", store]) == 64
    assert "error[settings-invalid]: capture.position_store: " in capsys.readouterr().err
