"""The Python programs of the how-to pages, run against a real server."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo.collection import Collection

import tailrace
from docs.pages import blocks
from tailrace.stand import ReplicaSet

URI = "mongodb://localhost:27017/?replicaSet=rs0"


class Enough(Exception):
    """The program has seen what it should."""


def program(page: str, number: int = 0) -> str:
    """The numbered Python block of a page."""
    return [block.text for block in blocks(page) if block.language == "python"][number]


@contextmanager
def orders_written(orders: Collection[Any]) -> Iterator[None]:
    """Insert orders, one after another, while the block runs."""
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.05):
            orders.insert_one({"total": 200})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join(timeout=120)


@pytest.fixture
def orders(mongodb: ReplicaSet) -> Iterator[Collection[Any]]:
    with mongodb.client() as client:
        client.drop_database("shop")
        client.shop.create_collection("orders")
        yield client.shop.orders
        client.drop_database("shop")


def run(text: str, mongodb: ReplicaSet, **names: Any) -> None:
    """Run a program until it has seen enough."""
    assert URI in text
    with pytest.raises(Enough):
        exec(compile(text.replace(URI, mongodb.uri), "how-to", "exec"), names)


def test_watching_prints_events(mongodb: ReplicaSet, orders: Collection[Any]) -> None:
    printed: list[str] = []

    def show(*values: object) -> None:
        printed.append(" ".join(map(str, values)))
        if len(printed) == 3:
            raise Enough

    with orders_written(orders):
        run(program("howto/watch.md"), mongodb, print=show)
    assert all(line.startswith("insert {'_id'") for line in printed)


def test_a_handler_is_called_and_tested_as_the_page_says(
    mongodb: ReplicaSet, orders: Collection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stopping = threading.Event()

    class Index:
        def put(self, key: Any, document: Any) -> None:
            if len(kept) == 3:
                stopping.set()
                signal.raise_signal(signal.SIGTERM)
            kept.append(key)

    kept: list[Any] = []
    names: dict[str, Any] = {"client": orders.database.client, "index": Index(), "tailrace": tailrace}
    with orders_written(orders):
        exec(compile(program("howto/resume.md", 1), "how-to", "exec"), names)
    assert stopping.is_set()
    exec(compile(program("howto/resume.md", 2), "how-to", "exec"), names)
    names["test_orders_reach_the_index"]()


def test_a_program_goes_on_where_it_was(
    mongodb: ReplicaSet, orders: Collection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handled: list[Any] = []

    def handle(event: dict[str, Any]) -> None:
        handled.append(event["documentKey"]["_id"])
        if len(handled) in (3, 6, 9):
            raise Enough

    with orders_written(orders):
        for _ in range(3):
            run(program("howto/resume.md"), mongodb, handle=handle)
    written = [order["_id"] for order in orders.find().sort("_id")]
    once = list(dict.fromkeys(handled))
    first = written.index(once[0])
    assert written[first : first + len(once)] == once
    assert Path("orders.pos").exists()
