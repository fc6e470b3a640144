"""The names that users may import: adding or removing one is a decision, and shows up here."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
from pymongo.database import Database

from tailrace.owned import run_guarded
from waiting import SECONDS

PUBLIC = {
    "tailrace": ["__version__", "apply_update", "consume", "handler", "watch"],
    "tailrace.durable": ["AsyncDurableStream", "DurableOptions", "DurableStream", "Handler", "consume", "handler"],
    "tailrace.testing": ["Delivered", "delete", "deliver", "insert", "replace", "update"],
    "tailrace.driver": [
        "AsyncChangeStream",
        "Batch",
        "ChangeStream",
        "ResumeRules",
        "WatchOptions",
        "token_of",
        "watch",
    ],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module: str) -> None:
    imported = importlib.import_module(module)
    assert sorted(imported.__all__) == sorted(PUBLIC[module])
    assert all(getattr(imported, name) is not None for name in PUBLIC[module])


def test_the_package_shows_its_public_names() -> None:
    import tailrace

    assert dir(tailrace) == sorted(PUBLIC["tailrace"])


def test_watch_without_a_store_is_the_drivers(database: Database[Any]) -> None:
    import tailrace
    from tailrace.driver import ChangeStream

    with tailrace.watch(database.orders) as stream:
        assert isinstance(stream, ChangeStream)


def test_importing_the_package_alone_does_not_import_pymongo() -> None:
    look = "import sys, tailrace; sys.exit('pymongo' in sys.modules)"
    assert run_guarded([sys.executable, "-c", look], timeout=SECONDS).returncode == 0
