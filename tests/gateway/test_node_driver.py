"""A driver in another language: the Node.js one watches, resumes and filters through the gateway."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from gateway.running_gateway import RunningGateway
from tailrace.owned import run_guarded
from tailrace.stand.cache import made_once
from waiting import SECONDS

SCRIPT = Path(__file__).with_name("watch.cjs")
DRIVER = "mongodb@6.12.0"


@pytest.fixture(scope="module")
def driver() -> Path:
    """The npm package, installed once into the cache folder."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not on the PATH")

    def install(folder: Path) -> None:
        command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", DRIVER]
        done = run_guarded(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"npm cannot install {DRIVER}: {done.stderr[-300:]}")

    return made_once(f"npm-{DRIVER}", install) / "node_modules" / "mongodb"


def test_the_nodejs_driver_watches(gateway: RunningGateway, database: Database[dict[str, Any]], driver: Path) -> None:
    command = ["node", str(SCRIPT), str(driver), gateway.uri, database.name]
    done = run_guarded(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "topology": "Sharded",
        "watched": [["insert", number] for number in range(5)] + [["update", 1]],
        "paid": True,
        "again": [3, 4],
        "update": ["_id", "documentKey"],
    }
