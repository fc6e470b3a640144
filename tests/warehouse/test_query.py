"""SQL over tables without Spark: what is read, what is refused, and how answers are printed."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from rest_catalog import RestCatalog
from tailrace.cli.app import run
from tailrace.errors import SqlRefused
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.query import ask
from tailrace.warehouse.tables.data import masked

LINES = pa.list_(pa.struct([("sku", pa.string()), ("parts", pa.list_(pa.struct([("n", pa.int64())])))]))
SCHEMA = pa.schema(
    [
        ("_id", pa.string()),
        ("amount", pa.float64()),
        ("Status", pa.string()),
        ("inner", pa.struct([("n", pa.int64()), ("tags", pa.list_(pa.string()))])),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(38, 18)),
        ("_bson", pa.binary()),
        ("when", pa.int64()),
        ("lines", LINES),
        ("order", pa.struct([("lines", LINES)])),
    ]
)


def lines(number: int) -> list[dict[str, Any] | None] | None:
    """Null, no lines, and lines with null and with nothing in them, in turns."""
    parts = [None, [], [{"n": number}], [None, {"n": None}]]
    return [None, [], [None, {"sku": None, "parts": parts[number % 4]}, {"sku": "a", "parts": None}]][number % 3]


def row(number: int) -> dict[str, Any]:
    return {
        "_id": f"k{number}",
        "amount": number * 1.5,
        "Status": "even" if number % 2 == 0 else None,
        "inner": {"n": number, "tags": ["a", f"t{number}"]},
        "at": datetime(2026, 1, 1, 0, 0, number, 1, tzinfo=UTC),
        "price": Decimal("2.5"),
        "_bson": bytes([number]),
        "when": number,
        "lines": lines(number),
        "order": None if number == 9 else {"lines": lines(number + 1)},
    }


def add(table: Table, numbers: range, folder: Path) -> None:
    """Add rows by Arrow's own writer, because PyIceberg's writes an empty list for a null one."""
    file = folder / f"rows-{numbers.start}.parquet"
    pq.write_table(pa.Table.from_pylist([row(number) for number in numbers], SCHEMA), file)
    table.add_files([str(file)])


@pytest.fixture(params=["folder", "jdbc", "rest"], scope="module")
def lake(request, tmp_path_factory) -> Iterator[tuple[WarehouseSettings, datetime]]:
    """Ten orders in two snapshots, and the moment between them."""
    tmp_path = tmp_path_factory.mktemp("lake")
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = SqlCatalog("lake", uri=uri, warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("shop")
    location = f"{tmp_path}/lake/shop/orders"
    orders = catalog.create_table(("shop", "orders"), SCHEMA, location=location)
    add(orders, range(4), tmp_path)
    time.sleep(0.05)  # snapshots are told apart by milliseconds
    between = datetime.now(UTC)
    time.sleep(0.05)
    add(orders, range(4, 10), tmp_path)
    history = catalog.create_table(("shop", "orders_history"), pa.schema([("token", pa.string())]))
    catalog.close()
    match request.param:
        case "jdbc":
            config = {"type": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/catalog.db", "warehouse": str(tmp_path / "lake")}
            yield WarehouseSettings(catalog_config=config), between
        case "rest":
            with RestCatalog.start(tmp_path / "lake", folder=tmp_path / "rest") as server:
                with closing(load_catalog("lake", type="rest", uri=server.url)) as rest:
                    rest.create_namespace("shop")
                    rest.register_table(("shop", "orders"), orders.metadata_location)
                    rest.register_table(("shop", "orders_history"), history.metadata_location)
                yield WarehouseSettings(catalog_config={"type": "rest", "uri": server.url}), between
        case "folder":
            newest = Path(orders.metadata_location.removeprefix("file://"))
            shutil.copy(newest, newest.with_name("v2.metadata.json"))
            yield WarehouseSettings(folder=f"{tmp_path}/lake"), between


def answered(query: str, settings: WarehouseSettings, as_of: datetime | None = None) -> list[tuple[Any, ...]]:
    with ask(query, settings, as_of) as answer:
        return list(answer.rows)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT count(*) FROM shop.orders", [(10,)]),
        ("SELECT count(*) FROM lake.shop.orders", [(10,)]),
        ("SELECT count(*) FROM SHOP.Orders", [(10,)]),
        ("SELECT sum(AMOUNT) FROM shop.orders WHERE status = 'even'", [(30.0,)]),
        ('SELECT "inner".n, "inner".tags[2] FROM shop.orders WHERE _id = \'k3\'', [(3, "t3")]),
        ("SELECT a._id FROM shop.orders a JOIN shop.orders b ON a.\"when\" = b.\"when\" + 9", [("k9",)]),
        ("WITH o AS (SELECT * FROM shop.orders) SELECT (SELECT count(*) FROM o), max(amount) FROM o", [(10, 13.5)]),
        ("SELECT count(*) FROM shop.orders a NATURAL JOIN shop.orders b WHERE a.status IS NOT NULL", [(3,)]),
        ("SELECT count(*) FROM shop.orders a JOIN shop.orders b USING (_id)", [(10,)]),
        ("SELECT orders.amount, o.a FROM (SELECT orders AS o FROM shop.orders), shop.orders LIMIT 0", []),
        ("SELECT o.amount FROM (SELECT orders AS o FROM shop.orders) WHERE o._id = 'k2'", [(3.0,)]),
        ("SELECT price, _bson, \"at\" FROM shop.orders WHERE \"when\" = 1",
         [(Decimal("2.5"), b"\1", datetime(2026, 1, 1, 0, 0, 1, 1, tzinfo=UTC))]),
        ("SELECT COLUMNS('am.*') FROM shop.orders ORDER BY ALL LIMIT 1", [(0.0,)]),
        ("SELECT count(*) FROM shop.orders_history", [(0,)]),
        ("SELECT `amount` FROM `shop`.`orders` WHERE `_id` = 'k2'", [(3.0,)]),
        ("SELECT 1", [(1,)]),
    ],
)  # fmt: skip
def test_a_query_reads_the_columns_it_names(lake, query, expected):
    settings, _ = lake
    if "orders_history" in query and not settings.catalog_config:
        pytest.skip("the folder of this test has one table")
    if "o.a " in query:
        with pytest.raises(SqlRefused):
            answered(query, settings)
        return
    assert answered(query, settings) == expected


def test_a_null_list_is_not_an_empty_one(lake):
    """Whether its elements are plain or structs, and wherever it stands."""
    found = answered('SELECT "when", lines, "order" FROM shop.orders ORDER BY "when"', lake[0])
    assert found == [(number, row(number)["lines"], row(number)["order"]) for number in range(10)]
    some = answered("SELECT _id FROM shop.orders WHERE lines IS NULL ORDER BY _id LIMIT 2 OFFSET 1", lake[0])
    assert some == [("k3",), ("k6",)]


def test_null_lists_of_a_slice_are_those_of_its_rows():
    """A batch may begin in the middle of an array, whose offsets and validity then do, too."""
    like = pa.array([[{"n": 1}], None, [{"n": 2}], None, []], pa.list_(pa.struct([("n", pa.int64())])))
    for begin in range(5):
        part = like[begin:]
        without_nulls = pa.ListArray.from_arrays(part.offsets, part.values)
        assert masked(without_nulls, part).to_pylist() == part.to_pylist()


def test_only_the_columns_that_a_query_names_are_read(lake, monkeypatch):
    chosen: list[tuple[str, ...]] = []
    scan = Table.scan
    monkeypatch.setattr(
        Table, "scan", lambda self, **options: chosen.append(options["selected_fields"]) or scan(self, **options)
    )
    answered("SELECT count(*) FROM shop.orders", lake[0])
    answered("SELECT sum(amount) FROM shop.orders WHERE lower(status) LIKE 'e%'", lake[0])
    answered("SELECT * EXCLUDE (_bson) FROM shop.orders", lake[0])
    assert chosen == [("when",), ("amount", "Status"), tuple(SCHEMA.names)]


def test_time_travel(lake):
    settings, between = lake
    assert answered("SELECT count(*) FROM shop.orders", settings, between) == [(4,)]
    assert answered("SELECT count(*) FROM shop.orders", settings, datetime.now(UTC)) == [(10,)]
    with pytest.raises(SqlRefused, match=r"shop\.orders begins at 20") as refused:
        answered("SELECT count(*) FROM shop.orders", settings, datetime(2020, 1, 1, tzinfo=UTC))
    assert "keep_hours" in refused.value.hint


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT count(*) FROM shop.order", "there is no table shop.order"),
        ("SELECT amuont FROM shop.orders", "amuont"),
        ("DELETE FROM shop.orders", "read-only"),
        ("SELECT 1; SELECT 2", "read-only"),
        ("COPY (SELECT 1) TO '{folder}/out.csv'", "read-only"),
        ("ATTACH '{folder}/other.db'", "read-only"),
        ("SELECT * FROM read_csv('{folder}/secret')", "disabled by configuration"),
        ("SELECT * FROM '{folder}/secret.csv'", "disabled by configuration"),
        ("SELECT * FROM settings", "does not exist"),
        ("SELEC 1", "syntax error"),
    ],
)
def test_what_a_query_may_not_do(lake, query, says, tmp_path):
    (tmp_path / "secret").write_text("a,b\n1,2\n")
    with pytest.raises(SqlRefused, match=says) as refused:
        answered(query.format(folder=tmp_path), lake[0])
    assert not (tmp_path / "out.csv").exists()
    if "shop.order" in says:
        assert "Did you mean shop.orders" in refused.value.hint


@pytest.fixture
def printed(lake, monkeypatch, capsys):
    """Run `tailrace sql`, and give its exit code and what it prints."""
    settings, _ = lake
    monkeypatch.setenv("TAILRACE_WAREHOUSE__FOLDER", settings.folder)
    monkeypatch.setenv("TAILRACE_WAREHOUSE__CATALOG_CONFIG", json.dumps(settings.catalog_config))

    def call(*words: str) -> tuple[int, str, str]:
        code = run(["sql", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_answers_are_printed_for_people_and_programs(printed, lake):
    query = 'SELECT _id, amount, "inner", _bson, "at", status FROM shop.orders ORDER BY _id LIMIT 2'
    code, out, _ = printed(query, "--json")
    assert [code, *map(json.loads, out.splitlines())] == [
        0,
        {"_id": "k0", "amount": 0.0, "inner": {"n": 0, "tags": ["a", "t0"]}, "_bson": "00",
         "at": "2026-01-01T00:00:00.000001+00:00", "Status": "even"},
        {"_id": "k1", "amount": 1.5, "inner": {"n": 1, "tags": ["a", "t1"]}, "_bson": "01",
         "at": "2026-01-01T00:00:01.000001+00:00", "Status": None},
    ]  # fmt: skip
    _, out, _ = printed(query, "--csv")
    assert [line[:4] for line in csv.reader(io.StringIO(out))] == [
        ["_id", "amount", "inner", "_bson"],
        ["k0", "0.0", '{"n": 0, "tags": ["a", "t0"]}', "00"],
        ["k1", "1.5", '{"n": 1, "tags": ["a", "t1"]}', "01"],
    ]
    _, out, _ = printed("SELECT _id, amount FROM shop.orders ORDER BY _id LIMIT 2")
    assert [line.split() for line in out.splitlines()] == [["_id", "amount"], ["k0", "0.0"], ["k1", "1.5"]]
    _, out, _ = printed("SELECT count(*) AS n FROM shop.orders", "--as-of", lake[1].isoformat(), "--json")
    assert json.loads(out) == {"n": 4}
    code, out, err = printed("SELECT _id FROM shop.orders", "--limit", "3", "--json")
    assert (len(out.splitlines()), "there are more" in err) == (3, True), "nothing is left out silently"
    assert len(printed("SELECT _id FROM shop.orders", "--limit", "0", "--csv")[1].splitlines()) == 11


def test_tables_and_queries_are_described(printed):
    _, out, _ = printed("shop.orders", "--describe", "--json")
    described = {one["column_name"]: one["column_type"] for one in map(json.loads, out.splitlines())}
    assert (described["amount"], described["at"]) == ("DOUBLE", "TIMESTAMP WITH TIME ZONE")
    assert described["inner"] == "STRUCT(n BIGINT, tags VARCHAR[])"
    _, out, _ = printed("SELECT sum(amount) AS total FROM shop.orders", "--describe", "--csv")
    assert out.splitlines() == ["column_name,column_type", "total,DOUBLE"]
    _, out, _ = printed("SHOW ALL TABLES", "--json")
    assert "orders" in {one["name"] for one in map(json.loads, out.splitlines())}


def test_wrong_questions_exit_with_their_reason(printed):
    code, _, err = printed("SELECT count(*) FROM shop.nothing")
    assert code != 0
    assert "error[sql-refused]: there is no table shop.nothing" in err
    code, _, err = printed("SELECT 1", "--as-of", "yesterday")
    assert code != 0
    assert "is not a time" in err
    code, _, err = printed("SELECT 1", "--engine", "spark", "--as-of", "1h")
    assert code != 0
    assert "TIMESTAMP AS OF" in err
