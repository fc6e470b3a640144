"""The names that users may import: adding or removing one is a decision, and shows up here."""

from __future__ import annotations

import importlib
import sys

import pytest

from tailrace.owned import run_guarded

PUBLIC = {
    "tailrace": ["__version__", "watch"],
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


def test_watch_is_the_drivers() -> None:
    import tailrace
    from tailrace.driver import watch

    assert tailrace.watch is watch


def test_importing_the_package_alone_does_not_import_pymongo() -> None:
    look = "import sys, tailrace; sys.exit('pymongo' in sys.modules)"
    assert run_guarded([sys.executable, "-c", look], timeout=60).returncode == 0
