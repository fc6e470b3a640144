"""The tables for those who move from other connectors: their properties are documented ones, our settings exist.

`connector-properties.json` holds the names that the three projects document, for the versions that are its keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from docs.pages import ROOT, read
from tailrace.capture.source.namespaces import Namespaces
from tailrace.settings import describe
from tailrace.spark.options import SourceOptions

DOCUMENTED = {
    name.split()[0]: set(names)
    for name, names in json.loads((ROOT / "tests" / "data" / "connector-properties.json").read_text()).items()
}


def rows(page: str, heading: str) -> Iterator[tuple[str, str]]:
    """Give the cells of the first table behind a heading."""
    table = read(page).split(heading, 1)[1].split("\n\n|", 1)[1].split("\n\n", 1)[0]
    for line in table.splitlines()[2:]:
        theirs, ours = line.strip("| ").split(" | ")
        yield theirs, ours


TABLES = {
    "mongo-kafka": ("howto/mongodb-connectors.md", "## Kafka source connector"),
    "mongo-spark": ("howto/mongodb-connectors.md", "## Spark connector"),
    "debezium": ("howto/debezium.md", "# Move from Debezium"),
}


@pytest.mark.parametrize("connector", TABLES)
def test_properties_of_theirs_are_documented_by_them(connector: str) -> None:
    found = set()
    for theirs, _ in rows(*TABLES[connector]):
        found |= set(re.findall(r"`([a-z]+(?:\.[a-zA-Z]+)+)(?: ?= ?[\w_]+)?`", theirs))
    assert len(found) >= 9
    assert found <= DOCUMENTED[connector]


@pytest.mark.parametrize("connector", ["mongo-kafka", "debezium"])
def test_settings_of_ours_exist(connector: str) -> None:
    known = {key for key, *_ in describe()}
    for _, ours in rows(*TABLES[connector]):
        for name in re.findall(r"`((?:capture|mongodb)\.\w+)", ours):
            assert name in known
        for name in re.findall(r"`(\w+) = ", ours):
            assert f"capture.{name}" in known


def test_options_of_our_source_exist() -> None:
    values = {"startAtOperationTime": "1:1", "maxEventsPerBatch": "5", "partitions": "2", "pipeline": "[]"}
    for _, ours in rows(*TABLES["mongo-spark"]):
        if "option" in ours:
            for name in re.findall(r"`(\w+)`", ours):
                SourceOptions.parse({name: values.get(name, "x")})


def test_the_pattern_that_leaves_a_collection_out_does() -> None:
    (pattern,) = re.findall(r"negative lookahead: `(/.*/)`", read("howto/debezium.md"))
    chosen = Namespaces.parse([pattern])
    assert chosen.contains("shop", "orders")
    assert not chosen.contains("shop", "audit")
    assert not chosen.contains("myshop", "orders")
