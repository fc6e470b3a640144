"""The load of the fraud-signals example: repeatable, skewed, with bursts, updates and refunds; and in the wheel."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from pymongo import DeleteOne, InsertOne, UpdateOne

from feature_changes import put
from tailrace.features import FeatureStore, load_definition
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.stand import Redis
from tailrace.up import demo
from waiting import SECONDS

REPOSITORY = Path(__file__).parents[2]
LOAD = REPOSITORY / "examples" / "fraud_signals" / "load.py"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fraud_signals_load", LOAD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def operations(load: ModuleType, seed: int, count: int = 5_000) -> list[Any]:
    shop = load.Shop(seed)
    return [shop.next_operation(NOW) for _ in range(count)]


def payments(made: list[Any]) -> list[dict[str, Any]]:
    return [one._doc for one in made if isinstance(one, InsertOne)]


def test_the_same_seed_gives_the_same_payments(load):
    def shown(seed: int) -> list[Any]:
        return [{**one, "_id": None} for one in payments(operations(load, seed))]

    assert shown(7) == shown(7) != shown(8)


def test_there_are_payments_updates_and_refunds_of_known_payments(load):
    made = operations(load, 7)
    kinds = Counter(type(one) for one in made)
    assert kinds[InsertOne] > kinds[UpdateOne] > kinds[DeleteOne] > 100
    known: set[Any] = set()
    for one in made:
        if isinstance(one, InsertOne):
            known.add(one._doc["_id"])
        else:
            assert one._filter["_id"] in known
        if isinstance(one, DeleteOne):
            known.remove(one._filter["_id"])


def test_few_users_pay_often_and_thieves_pay_in_bursts(load):
    made = payments(operations(load, 7))
    honest = Counter(one["user_id"] for one in made if one["user_id"] not in load.FRAUDSTERS)
    assert honest[1] > 5 * honest[20]
    assert len(honest) > 200
    beginning = Counter(one["user_id"] for one in made[:60])
    assert beginning[load.FRAUDSTERS[0]] > 10
    # Whoever pays by hand is somebody whom the load does not know, so that the payment shows.
    assert demo.ENTITY not in {one["user_id"] for one in made}


def test_the_demo_knows_the_example(load):
    assert load.NAMESPACE == demo.NAMESPACE
    definition = load_definition(demo.DEFINITION)
    assert (definition.name, definition.namespace) == (demo.FEATURES, demo.NAMESPACE)


def test_the_load_writes_to_a_real_server_at_its_rate_and_by_hand(mongodb):
    with mongodb.client() as client:
        client.drop_database("shop")
        paid = run_guarded(
            [sys.executable, str(LOAD), "--uri", mongodb.uri, "--pay", "7", "19.99"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        assert "user 7 paid 19.99" in paid.stdout
        running = GuardedProcess([sys.executable, str(LOAD), "--uri", mongodb.uri, "--rate", "200"])
        try:
            with client.shop.transactions.watch([{"$match": {"operationType": "delete"}}]) as refunds:
                assert refunds.next()["ns"] == {"db": "shop", "coll": "transactions"}
        finally:
            running.terminate()
            assert running.wait(SECONDS) == 0
        assert client.shop.transactions.count_documents({"status": "captured"}) > 0
        client.drop_database("shop")


@pytest.mark.parametrize(("paid", "verdict"), [(1, "accept"), (6, "refuse: more than five payments in a minute")])
def test_a_decision_is_made_by_the_signals_of_the_user(redis_server: Redis, paid: int, verdict: str) -> None:
    """It asked for a user whose id is a text, found nothing of anybody, and accepted everything."""
    with redis.Redis.from_url(redis_server.url) as client:
        store = FeatureStore(client, load_definition(str(LOAD.with_name("features.toml"))))
        store.begin()
        payment = {"user_id": 7, "amount": 5.0, "merchant": "north", "placed_at": datetime.now(UTC)}
        store.apply([put(number, {"_id": number, **payment}) for number in range(paid)])
    command = [sys.executable, str(LOAD.with_name("decide.py")), "7", redis_server.url]
    decided = run_guarded(command, capture_output=True, text=True, timeout=SECONDS)
    assert decided.stdout.splitlines()[-1].endswith(f": {verdict}"), decided.stdout + decided.stderr


def test_a_wheel_carries_the_example(tmp_path):
    """As it stands in the archive, `tailrace.up.demo` finds it beside itself."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    run_guarded(build, cwd=REPOSITORY, capture_output=True, timeout=SECONDS, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = "from tailrace.up import demo; print(demo.__file__, demo.LOAD, demo.DEFINITION); open(demo.LOAD)"
    printed = run_guarded(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path / "installed"), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    ).stdout
    assert all(path.startswith(str(tmp_path / "installed")) for path in printed.split())
