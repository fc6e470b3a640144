"""Marked documents on a real server, through all that reads them: no hidden mark in a file, a log or a page.

`make canary` does it under more policies; the short form is part of `make test`.
"""

from __future__ import annotations

import io
import os
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from pymongo.database import Database
from structlog.testing import capture_logs

from canaries import KEY, Canaries, found_in, settings_of
from tailrace.capture.producer.assembly import Capture
from tailrace.cli.app import run
from tailrace.dashboard.answers import ObservedEvent
from tailrace.dashboard.sources.change_stream import ChangeStreamSource
from tailrace.settings import Settings

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "2"))
CHANGES = 60
DEFINITION = """
name = "{name}"
[[source]]
namespace = "{name}.people"
entity = "email"
time = "at"
[[feature]]
name = "newest"
kind = "last"
of = "a"
n = 5
[[feature]]
name = "different"
kind = "distinct"
of = "b"
window = "forever"
[[feature]]
name = "documents"
kind = "count"
window = "forever"
"""


def settings_file(database: Database[Any], folder: Path, canaries: Canaries, **sections: Mapping[str, Any]) -> Path:
    """A settings file under a new random policy."""
    canaries.new_policy()
    host, port = database.client.address
    given: dict[str, Mapping[str, Any]] = {
        "mongodb": {"uri": f"mongodb://{host}:{port}/?directConnection=true"},
        "capture": {
            "namespaces": [f"{database.name}.people"],
            "source": "oplog",
            "sink": f"file:{folder}/records",
            "position_store": f"file:{folder}/positions",
            "dead_letters": f"file:{folder}/dead",
            "inventory": f"{folder}/inventory",
        },
        "policy": {"key": KEY.decode(), "rules": settings_of(canaries.rules)},
    }
    given = {name: {**given.get(name, {}), **sections.get(name, {})} for name in given | sections}
    file = folder / "tailrace.toml"
    file.write_text("".join(f"[{name}]\n{_lines(values)}" for name, values in given.items()))
    assert tomllib.loads(file.read_text())
    return file


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {_shown(value)}\n" for name, value in values.items())


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_shown(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value) if isinstance(value, int) else f"'{value}'"


def files_in(folder: Path, *, but: str) -> dict[str, bytes]:
    """What stands in the files of a folder, those of Parquet as their rows too."""
    found = {}
    for file in folder.rglob("*"):
        if file.is_file() and but not in file.parts and file.name != "tailrace.toml":
            found[str(file)] = file.read_bytes()
            if file.suffix == ".parquet":
                found[str(file)] += repr(parquet.read_table(file).to_pylist()).encode()
    return found


def assert_hidden(outputs: Mapping[str, bytes], hidden: Iterable[str], rules: object) -> None:
    leaks = {name for mark in hidden for name, content in outputs.items() if found_in(content, mark)}
    assert not leaks, f"seed {SEED}, rules {rules}"


def printed_by(words: list[str]) -> bytes:
    with redirect_stdout(io.StringIO()) as out:
        assert run(words) == 0
    return out.getvalue().encode()


@pytest.mark.timeout(1800)
def test_no_mark_leaves_a_capture_or_those_who_read_mongodb_themselves(
    database: Database[Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Snapshot and stream, dead letters, inventory and log; rows of the Spark source, lines of the page, features."""
    canaries = Canaries(SEED)
    definition = tmp_path / "definition.toml"
    definition.write_text(DEFINITION.format(name=database.name))
    seen = {"records": 0, "rows": 0, "page": 0, "features": 0, "dead": 0}
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = settings_file(database, folder, canaries)
        settings = Settings.load(file)
        began = database.client.admin.command("ping")["operationTime"]
        page: list[ObservedEvent] = []
        source = ChangeStreamSource(settings, page.append)
        source.poll()
        hidden, shown = canaries.write(database.people, CHANGES)
        with capture_logs() as logs, Capture.open(settings, database.client) as capture:
            capture.producer(stop_when_idle=True).run()
            more_hidden, more_shown = canaries.write(database.people, CHANGES)
            capture.producer(stop_when_idle=True).run()
        hidden, shown = hidden | more_hidden, shown | more_shown
        outputs = files_in(folder, but="positions") | {"log": repr(logs).encode()}
        outputs["terminal"] = "".join(capfd.readouterr()).encode()
        names = {"settingsFile": str(file), "namespaces": f"{database.name}.people"}
        since = {"startAtOperationTime": f"{began.time}:{began.inc}"}
        for how in ({"snapshot": "true"}, since):
            outputs["rows"] = outputs.get("rows", b"") + _rows({**names, **how})
        while (before := source.poll()) < source.poll():
            assert before
        source.close()
        outputs["page"] = repr(page).encode()
        outputs["features"] = printed_by(["--config", str(file), "features", "try", str(definition), "--json"])
        assert_hidden(outputs, hidden, canaries.rules)
        for name, content in outputs.items():
            kind = next((kind for kind in seen if kind in name.removeprefix(str(folder))), None)
            if kind is not None:
                seen[kind] += kind == "dead" or any(found_in(content, mark) for mark in shown)
        database.people.drop()
    assert all(seen.values()) or ROUNDS < 2, f"each output must have had something to show: {seen}"


def _rows(options: dict[str, str]) -> bytes:
    """The rows of the Spark source, and how it ends on an update whose path can be read in two ways."""
    from tailrace.spark.columns import ENVELOPE
    from tailrace.spark.source import TailraceDataSource

    reader, rows = TailraceDataSource(options).reader(ENVELOPE), list[str]()
    try:
        rows += (str(batch.to_pylist()) for part in reader.partitions() for batch in reader.read(part))
    except Exception as error:
        if "position or a name" not in str(error):
            raise
        rows.append(repr(error))
    return "".join(rows).encode()
