"""What tables are called, and what was agreed about them."""

from __future__ import annotations

import pytest

from tailrace.errors import SettingsError
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.columns.contract import Contract, Ends, Rules
from tailrace.warehouse.tables.names import history_table, mirror_table, quoted


def test_no_two_collections_share_a_table():
    names = ["orders", "orders_history", "orders_x", "orders_history_x", "a.b", "a_b", "a b", "ä", "", "a$b"]
    tables = [table(f"shop.{name}") for name in names for table in (mirror_table, history_table)]
    assert len(set(tables)) == len(tables)
    assert mirror_table("shop.orders") == ("shop", "orders")
    assert history_table("shop.orders") == ("shop", "orders_history")
    assert history_table("shop.") == ("shop", "_history")
    assert mirror_table("my-shop.a.b") == ("my_2d_shop", "a_2e_b")
    assert quoted("a", "b`c") == "`a`.`b``c`"


def test_rules_of_one_collection():
    settings = WarehouseSettings(
        contract="strict",
        contracts={"shop.events": "json"},
        declared={"shop.orders": "amount double"},
        on_drift="dead-letter",
        deletes="mark",
        ends="drop",
    )
    orders = Rules.of(settings, "shop.orders")
    assert orders == Rules(Contract.STRICT, {"amount": "double"}, True, True, Ends.DROP)
    assert Rules.of(settings, "shop.events").contract is Contract.JSON
    with pytest.raises(SettingsError, match="no contract 'loose'"):
        Rules.of(settings.model_copy(update={"contracts": {"shop.x": "loose"}}), "shop.x")
