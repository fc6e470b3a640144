"""Every verb with the core alone installed: it works, or it says which extra it needs and how to get it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from typer.main import get_command

from tailrace.cli.app import app
from tailrace.extras import EXTRA_OF
from tailrace.owned import run_guarded
from tailrace.stand import ReplicaSet

RUN_LINES = Path(__file__).parent / "run_lines.py"
TRIED = Path(__file__).parents[2] / "examples" / "fraud_signals" / "features.toml"
NOBODY = "mongodb://127.0.0.1:1/"
NEEDS = {
    "dashboard": "dashboard",
    "features": "spark,redis",
    "features run": "spark,redis",
    "lookup": "redis",
    "produce --sink kafka": "kafka",
    "produce --sink redis": "redis",
    "position show --store kafka": "kafka",
    "position show --store postgresql": "postgres",
    "position show --store redis": "redis",
    "sql": "sql",
    "sql --engine spark": "spark",
    "up": "kafka,spark,redis,dashboard",
    "verify": "kafka",
    "warehouse run": "spark",
    "warehouse compact": "spark",
    "warehouse rebuild": "spark",
}
"""The verbs that need an extra, and which one they name first."""


def commands_of(uri: str, namespace: str, folder: Path) -> dict[str, list[str]]:
    """Give a command line for every verb; a verb of several kinds has one for each.

    Those that need an extra name a server that does not answer: the extra is looked for first.
    """
    store = ["--store", f"file:{folder / 'positions'}"]
    where = ["--uri", uri, "--name", "orders", *store, "--sink", f"file:{folder / 'out.jsonl'}"]
    elsewhere = ["--uri", NOBODY, *where[2:-1]]
    definition = folder / "features.toml"
    definition.write_text("")
    tables = ["--folder", str(folder)]
    return {
        "check": ["check", "--uri", uri, *store],
        "dashboard": ["dashboard", "--port", "0"],
        "doctor": ["doctor", "--uri", uri],
        "engine replay": ["engine", "replay", "--help"],
        "features": ["features", str(definition)],
        "features try": ["features", "try", str(TRIED), "--uri", uri],
        "features run": ["features", "run", str(definition)],
        "gaps": ["gaps", *store],
        "init": ["init", "--uri", uri, "--yes", "--output", str(folder / "init.toml")],
        "lookup": ["lookup", "users", "7"],
        "position export": ["position", "export", *store],
        "position history": ["position", "history", "orders", *store],
        "position set": ["position", "set", "orders", "--at", "1777636800", "--reason", "test", "--create", *store],
        "position show": ["position", "show", *store],
        "position show --store kafka": ["position", "show", "--store", "kafka://127.0.0.1:1/positions"],
        "position show --store postgresql": ["position", "show", "--store", "postgresql://127.0.0.1:1/x"],
        "position show --store redis": ["position", "show", "--store", "redis://127.0.0.1:1"],
        "produce": ["produce", namespace, *where, "--until-idle"],
        "produce --sink kafka": ["produce", namespace, *elsewhere, "kafka://127.0.0.1:1"],
        "produce --sink redis": ["produce", namespace, *elsewhere, "redis://127.0.0.1:1"],
        "recover": ["recover", *where, "--from-now"],
        "schema show": ["schema", "show", *tables],
        "settings": ["settings"],
        "snapshot": ["snapshot", namespace, *where],
        "sql": ["sql", "SELECT 1"],
        "sql --engine spark": ["sql", "SELECT 1", "--engine", "spark"],
        "stand status": ["stand", "status"],
        "token encode": ["token", "encode", "--at", "1777636800"],
        "up": ["up", "--folder", str(folder / "up")],
        "verify": ["verify", *elsewhere, "kafka://127.0.0.1:1"],
        "warehouse tables": ["warehouse", "tables", *tables],
        "warehouse run": ["warehouse", "run", "--topics", "a", *tables],
        "warehouse compact": ["warehouse", "compact", *tables],
        "warehouse rebuild": ["warehouse", "rebuild", namespace, "--topics", "a", *tables],
        "watch": ["watch", namespace, "--uri", uri, "--start-at", "0,1", "--count", "1"],
    }


@pytest.fixture(scope="module")
def results(mongodb: ReplicaSet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("core-only")
    with mongodb.client() as client:
        database: Database[Any] = client["core_only"]
        client.drop_database(database.name)
        database.orders.insert_one({"_id": 1})
        commands = commands_of(mongodb.uri, f"{database.name}.orders", folder)
        (folder / "commands.json").write_text(json.dumps(list(commands.values())))
        command = [sys.executable, str(RUN_LINES), "commands.json", "results.json", "--core"]
        ended = run_guarded(command, cwd=folder, capture_output=True, text=True, timeout=240)
        client.drop_database(database.name)
    assert ended.returncode == 0, ended.stderr
    return dict(zip(commands, json.loads((folder / "results.json").read_text()), strict=True))


def test_every_verb_is_tried(tmp_path: Path) -> None:
    tried = {" ".join(words[:2]) for words in commands_of("", "", tmp_path).values()}
    tried |= {words[0] for words in commands_of("", "", tmp_path).values()}
    left = {"demo", "serve", "stand"}  # they start servers; tests of their own run them
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        assert name in tried | left, name
        if name not in left:
            below = {f"{name} {verb}" for verb in getattr(command, "commands", {})}
            assert not below or below & tried, name


def test_verbs_of_the_core_work(results: dict[str, Any]) -> None:
    for name, result in results.items():
        if name not in NEEDS:
            assert "error[" not in result["stderr"], f"{name}: {result['stderr']}"


def test_a_missing_extra_is_named_once(results: dict[str, Any]) -> None:
    """`init` writes the settings all the same: the extra may be installed later, or elsewhere."""
    assert results["init"]["code"] == 0
    assert results["init"]["stderr"].count("pip install 'tailrace[kafka]'") == 1
    assert results["doctor"]["code"] == 2
    assert results["doctor"]["stdout"].count("pip install 'tailrace[kafka]'") == 1


@pytest.mark.parametrize("name", NEEDS)
def test_verbs_of_an_extra_name_it(results: dict[str, Any], name: str) -> None:
    complaint = results[name]["stderr"]
    assert "error[extra-missing]" in complaint, complaint
    assert f"pip install 'tailrace[{NEEDS[name]}]'" in complaint
    assert results[name]["code"] == 64


def test_every_optional_module_has_an_extra() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(EXTRA_OF.values()) == set(project["optional-dependencies"]) - {"all"}
