"""The orders lake: its commands, its Spark program and its notebook, run as its page says. `make examples`."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pymongo.collection import Collection

from tailrace.owned import run_guarded
from tailrace.stand import ReplicaSet

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders_lake"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


@pytest.fixture
def orders(mongodb: ReplicaSet) -> Any:
    with mongodb.client() as client:
        client.drop_database("shop")
        client.shop.create_collection("orders")
        yield client.shop.orders
        client.drop_database("shop")


def run(folder: Path, *command: str) -> str:
    """Run a command of the page, which must succeed, and give what it prints."""
    programs = {"tailrace": [sys.executable, "-m", "tailrace.cli.app"], "python": [sys.executable]}
    words = [*programs[command[0]], *command[1:]]
    environment = {**os.environ, "TAILRACE_SPARK__MASTER": "local[2]"}
    ended = run_guarded(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr
    return str(ended.stdout)


def commands_of_the_page(uri: str) -> list[list[str]]:
    """Give the commands of the page that do not start servers, with the address that it leaves to the reader."""
    lines = re.findall(r"^ {4}((?:tailrace|python) .*?)(?:  +#.*)?$", (EXAMPLE / "README.md").read_text(), re.MULTILINE)
    told = [line.replace("MONGODB_URI", uri) for line in lines if not line.startswith("tailrace stand")]
    return [shlex.split(line) for line in told]


def test_the_page_the_spark_program_and_the_notebook(
    mongodb: ReplicaSet, orders: Collection[dict[str, Any]], tmp_path: Path
) -> None:
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    (tmp_path / "tailrace.toml").write_text(f'[mongodb]\nuri = "{mongodb.uri}"\n')
    commands = commands_of_the_page(mongodb.uri)
    assert [words[1] for words in commands] == ["warehouse", "orders.py", "warehouse", "sql", "revenue.py"]
    printed = [run(tmp_path, *words) for words in commands]

    paid = list(orders.find({"status": {"$ne": "placed"}}))
    assert 0 < len(paid) < orders.count_documents({}) < 100
    for status in orders.distinct("status"):
        assert re.search(rf"{status}\s+{orders.count_documents({'status': status})}\b", printed[3])
    for city in {order["customer"]["city"] for order in paid}:
        theirs = [order["total"] for order in paid if order["customer"]["city"] == city]
        assert re.search(rf"\|\s*{city}\|\s*{len(theirs)}\|\s*{sum(theirs)}\|", printed[4])
    cancelled = sum(
        int(count) for count in re.findall(r"\|\s*\w+\|\s*(\d+)\|$", printed[4].split("cancelled")[1], re.M)
    )
    assert cancelled == 100 - orders.count_documents({})

    cells = json.loads((EXAMPLE / "explore.ipynb").read_text())["cells"]
    program = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (tmp_path / "cells.py").write_text(program)
    assert f"{orders.count_documents({})} orders in both" in run(tmp_path, "python", "cells.py")
