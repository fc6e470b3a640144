"""The Python programs of the how-to pages, run against a real server."""

from __future__ import annotations

import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pymongo.collection import Collection

import tailrace
from docs.pages import ROOT, blocks, read
from tailrace.stand import ReplicaSet
from waiting import SECONDS

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
        writer.join(timeout=SECONDS)


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


def test_tables_are_read_without_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program of `howto/engines.md` on a folder of tables as the job leaves it: the newest metadata file counts."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")
    schema = pa.schema([("status", pa.string()), ("amount", pa.float64())])
    orders = catalog.create_table(("shop", "orders"), schema, location=f"{tmp_path}/warehouse/shop/orders")
    for version, amounts in ((9, [5.0]), (10, [20.0, 7.5])):
        orders.append(pa.Table.from_pylist([{"status": "paid", "amount": amount} for amount in amounts], schema))
        newest = Path(orders.metadata_location.removeprefix("file://"))
        shutil.copy(newest, newest.with_name(f"v{version}.metadata.json"))
    catalog.close()
    monkeypatch.chdir(tmp_path)
    exec(program("howto/engines.md"), {})
    shown = capsys.readouterr().out
    assert "32.5" in shown
    assert "20.0" in shown
    assert "│      3 │" in shown


def test_delta_tables_are_read_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = pa.table({"status": ["paid", "paid", "placed"], "amount": [20.0, 7.5, 5.0]})
    write_deltalake(str(tmp_path / "warehouse" / "shop" / "orders"), orders)
    monkeypatch.chdir(tmp_path)
    exec(program("howto/engines.md", 1), {})
    shown = capsys.readouterr().out
    assert "paid" in shown
    assert "placed" in shown


def test_prometheus_is_set_up_with_ports_and_rules_that_there_are() -> None:
    (block,) = [block.text for block in blocks("howto/observe.md") if block.language == "yaml"]
    written = yaml.safe_load(block)
    assert all((ROOT / file).exists() for file in written["rule_files"])
    (job,) = written["scrape_configs"]
    ports = {target.rpartition(":")[2] for each in job["static_configs"] for target in each["targets"]}
    assert ports <= set(re.findall(r"\b(?:84|94)\d\d\b", read("reference/deploy.md")))
