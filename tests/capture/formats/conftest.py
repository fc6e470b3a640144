"""Events of real servers: of one that runs now, and recorded ones."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database


@pytest.fixture(params=["python", "kernel"], scope="module", autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Everything that formats do is done by both: the reference, and the compiled kernel."""
    if request.param == "kernel":
        pytest.importorskip("tailrace_kernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAILRACE_KERNEL", "on" if request.param == "kernel" else "off")
        yield request.param


RECORDINGS = ("4.2.6", "5.0.4", "6.0.5", "6.0.5.extra", "7.0.28", "sharded-6.0.5")

TAGS = ["a" * 60, "b" * 60, "c" * 60]


@pytest.fixture(params=RECORDINGS)
def recorded(request: pytest.FixtureRequest, recordings: Path) -> list[bytes]:
    """All events of a recording whose strings are UTF-8."""
    file = recordings / f"{request.param}.jsonl.gz"
    with gzip.open(file) as lines:
        read = [json.loads(line) for line in lines]
    events = [base64.b64decode(line["bson"]) for line in read if line["kind"] == "event" and "bson" in line]
    return [event for event in events if "_id" in RawBSONDocument(event)]


@pytest.fixture
def events(database: Database[dict[str, Any]]) -> dict[str, bytes]:
    """One event of each kind, as a server wrote them, by name."""
    orders = database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    # Long values, because a server replaces what is shorter than its difference.
    first = {"_id": 1, "user_id": 7, "price": 9.5, "tags": TAGS, "to": {"city": "Bonn", "rest": "x" * 200}}
    with orders.watch() as stream:
        orders.insert_one(first)
        orders.update_one(
            {"_id": 1}, [{"$set": {"price": 10, "to.city": "Köln", "tags": TAGS[:1]}}, {"$unset": "user_id"}]
        )
        orders.replace_one({"_id": 1}, {"user_id": 8, "price": 11})
        orders.delete_one({"_id": 1})
        seen = {(event := next(stream))["operationType"]: bson.encode(event) for _ in range(4)}
    with orders.watch(full_document="updateLookup", full_document_before_change="whenAvailable") as stream:
        orders.insert_one({"_id": 2, "user_id": 9})
        orders.update_one({"_id": 2}, {"$set": {"price": 3}})
        next(stream)
        seen["update with images"] = bson.encode(next(stream))
        orders.delete_one({"_id": 2})
        seen["delete with image"] = bson.encode(next(stream))
        orders.drop()
        seen["drop"] = bson.encode(next(stream))
    return seen
