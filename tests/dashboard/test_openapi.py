"""The description is complete: every route is in it, every reference leads somewhere, the documentation lists all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from starlette.routing import Route

from tailrace.dashboard.web.app import Dashboard
from tailrace.dashboard.web.endpoints import description
from tailrace.settings import Settings

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "http-api.md").read_text()


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(each) for each in node.values()))
    return set().union(*(references(each) for each in node)) if isinstance(node, list) else set()


def test_every_route_of_the_api_is_described(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"capture": {"position_store": f"file:{tmp_path}", "sink": f"file:{tmp_path}/o"}}
    )
    routes = [route.path for route in Dashboard(settings).app.routes if isinstance(route, Route)]
    served = {re.sub(r":\w+}", "}", path) for path in routes if path.startswith("/api/")}
    described = {re.sub(r"^/api/actions/.*", "/api/actions/{action}", path) for path in description()["paths"]}
    assert described | {"/api/openapi.json"} == served


def test_every_reference_leads_to_a_schema_and_every_schema_is_closed() -> None:
    document = description()
    schemas = document["components"]["schemas"]
    assert {reference.rpartition("/")[2] for reference in references(document)} <= schemas.keys()
    objects = [schema for schema in schemas.values() if schema.get("type") == "object"]
    assert len(objects) > 20
    assert all(schema["additionalProperties"] is False for schema in objects)


def test_every_operation_has_its_own_name_and_says_who_may() -> None:
    operations = [method for methods in description()["paths"].values() for method in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    posts = [methods["post"] for methods in description()["paths"].values() if "post" in methods]
    assert all(post["security"] == [{"token": []}] for post in posts)


def test_the_documentation_lists_every_path() -> None:
    listed = {path.partition("?")[0] for path in re.findall(r"^\| `(/[^`]+)`", DOCUMENT, re.MULTILINE)}
    assert description()["paths"].keys() <= listed
    assert listed - description()["paths"].keys() == {"/healthz", "/readyz", "/metrics"}
