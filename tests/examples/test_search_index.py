"""The search-index example on a real server: snapshot, changes, a kill, and the cache that forgets."""

from __future__ import annotations

import importlib.util
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from pymongo.collection import Collection

from command_lines import complaint_about
from tailrace.owned import GuardedProcess
from tailrace.stand import Redis, ReplicaSet
from tailrace.testing import delete, deliver, insert, update
from waiting import SECONDS

SYNC = Path(__file__).parents[2] / "examples" / "search_index" / "sync.py"


@pytest.fixture(scope="module")
def sync() -> ModuleType:
    spec = importlib.util.spec_from_file_location("search_index_sync", SYNC)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def products(mongodb: ReplicaSet) -> Iterator[Collection[Any]]:
    with mongodb.client() as client:
        client.drop_database("shop")
        yield client.shop.products
        client.drop_database("shop")


def wait(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_index_and_cache_follow_the_collection_over_a_kill(
    sync: ModuleType, mongodb: ReplicaSet, products: Collection[Any], redis_server: Redis, tmp_path: Path
) -> None:
    file = str(tmp_path / "products.db")
    command = [sys.executable, str(SYNC), mongodb.uri, file, redis_server.url]
    products.insert_one({"_id": 1, "name": "red kettle"})
    index = sync.Index(file)
    first = GuardedProcess(command)
    wait(lambda: index.search("kettle") == ["1"])
    first.kill()
    first.wait(SECONDS)
    products.insert_one({"_id": 2, "name": "blue kettle"})
    with redis.Redis.from_url(redis_server.url) as cache:
        cache.set("product:1", "<html>")
        products.update_one({"_id": 1}, {"$set": {"name": "red pot"}})
        second = GuardedProcess(command)
        try:
            wait(lambda: index.search("kettle") == ["2"] and index.search("pot") == ["1"])
            wait(lambda: cache.get("product:1") is None)
        finally:
            second.terminate()
            second.wait(SECONDS)
    assert second.returncode == 0


def test_the_page_names_what_there_is() -> None:
    page = SYNC.with_name("README.md").read_text()
    lines = re.findall(r"^    (\S.*?)(?:\s+#.*)?$", page, re.MULTILINE)
    assert complaint_about(lines[0]) is None
    assert lines[1].split() == ["python", "sync.py", "MONGODB_URI", "products.db", "REDIS_URL"]
    assert "MONGODB_URI INDEX [REDIS_URL]" in SYNC.read_text()


def test_the_handler_stands_repetition(sync: ModuleType, tmp_path: Path) -> None:
    index = sync.Index(str(tmp_path / "products.db"))
    ns = "shop.products"
    events = [
        insert(ns, {"_id": 1, "name": "red kettle"}),
        update(ns, 1, {"name": "red pot"}, document={"_id": 1, "name": "red pot"}),
        insert(ns, {"_id": 2, "name": "blue pot"}),
        delete(ns, 2),
    ]
    deliver(index.apply, events, crash_after=3)
    assert index.search("pot") == ["1"]
