"""The compose file: every command and variable in it is one that the program knows; no daemon is needed."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from command_lines import complaint_about_words
from tailrace.settings import describe

FILE = Path(__file__).parents[2] / "compose.yaml"


def test_commands_and_settings_exist() -> None:
    services = yaml.safe_load(FILE.read_text())["services"]
    known = {f"TAILRACE_{key.upper().replace('.', '__')}" for key, *_ in describe()}
    ours = {name: service for name, service in services.items() if service.get("build") == "."}
    assert set(ours) == {"producer", "gateway", "dashboard"}
    for name, service in ours.items():
        assert complaint_about_words(service["command"]) is None, name
        assert set(service["environment"]) <= known, name
        assert set(service.get("depends_on", {})) <= set(services), name


def test_nothing_listens_beyond_this_machine() -> None:
    for name, service in yaml.safe_load(FILE.read_text())["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_the_address_for_the_host_works_from_the_host() -> None:
    """The member is called `mongodb`, a name that only containers know: a driver outside must not ask for it."""
    text = FILE.read_text()
    assert 'host:"mongodb:27017"' in text
    assert all("directConnection=true" in uri for uri in re.findall(r"mongodb://localhost\S*", text))
