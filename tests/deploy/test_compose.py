"""The compose file: everything it names is there and fits together; no daemon is needed, so none is started."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_lines import complaint_about_words
from tailrace.settings import describe

ROOT = Path(__file__).parents[2]
FILE = ROOT / "compose.yaml"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OUTSIDE_THE_SETTINGS = {"TAILRACE_CACHE"}
KEYS = {
    "image",
    "build",
    "command",
    "environment",
    "ports",
    "volumes",
    "depends_on",
    "healthcheck",
    "restart",
    "profiles",
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return read


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = compose["services"]
    return made


def context_of(service: dict[str, Any]) -> Any:
    build = service.get("build")
    return build.get("context") if isinstance(build, dict) else build


def test_it_has_every_part_of_the_pipeline(compose: dict[str, Any], services: dict[str, Any]) -> None:
    assert set(compose) == {"services", "volumes"}
    ours = {name for name, service in services.items() if context_of(service) == "."}
    assert ours == {"producer", "gateway", "features", "tables", "dashboard"}
    for name, service in services.items():
        assert set(service) <= KEYS, name
        assert ("image" in service) != ("build" in service), name
        assert re.fullmatch(r"[\w/]+:[\d.]+", service.get("image", "an/image:1")), name


def test_commands_and_settings_exist(services: dict[str, Any]) -> None:
    known = {f"TAILRACE_{key.upper().replace('.', '__')}" for key, *_ in describe()} | OUTSIDE_THE_SETTINGS
    for name, service in services.items():
        if context_of(service) == ".":
            assert complaint_about_words(service["command"]) is None, name
            assert set(service["environment"]) <= known, name


def test_what_a_service_waits_for_is_there_and_can_be_waited_for(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services, name
            assert how["condition"] in ("service_started", "service_healthy"), name
            assert how["condition"] == "service_started" or services[other]["healthcheck"]["test"], name
            assert "profiles" not in services[other], f"{name} waits for what a profile leaves out"


def test_addresses_are_those_of_services_and_their_ports(services: dict[str, Any]) -> None:
    """What one container asks of another: the name of a service, and the port that it has there."""
    ports = {"mongodb": "27017", "kafka": "9092", "redis": "6379", "producer": "9464"}
    for name, service in services.items():
        if context_of(service) != ".":
            continue
        texts = [*map(str, service.get("environment", {}).values()), *map(str, service.get("command", []))]
        for host, port in re.findall(r"\b([a-z]+):(\d{4,5})\b", " ".join(texts)):
            assert ports.get(host) == port, f"{name}: {host}:{port}"
    assert services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://kafka:9092"
    assert services["producer"]["command"][-2:] == ["--metrics-port", "9464"]


def test_files_and_folders_are_there(compose: dict[str, Any], services: dict[str, Any]) -> None:
    """A volume takes its owner from the folder of the image, which is the user's that the image runs as."""
    assert "--owner 10001 /var/lib/tailrace" in DOCKERFILE
    for name, service in services.items():
        for source, target, *_ in (volume.split(":") for volume in service.get("volumes", [])):
            if source in compose["volumes"]:
                assert target == "/var/lib/tailrace", name
            else:
                assert (ROOT / source).is_file(), name
                assert target in service["command"], name
    for name in ("features", "tables"):
        assert services[name]["build"]["args"]["EXTRAS"] == "all"
        assert "ARG EXTRAS=" in DOCKERFILE


def test_nothing_listens_beyond_this_machine(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_the_address_for_the_host_works_from_the_host() -> None:
    """The member is called `mongodb`, a name that only containers know: a driver outside must not ask for it."""
    text = FILE.read_text()
    assert 'host:"mongodb:27017"' in text
    assert all("directConnection=true" in uri for uri in re.findall(r"mongodb://localhost\S*", text))
