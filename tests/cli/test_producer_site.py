"""A producer that runs, asked over HTTP what it does and told what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tailrace.capture.positions import open_store
from tailrace.capture.recovery.gaps import GapLedger
from tailrace.owned import GuardedProcess
from tailrace.stand import ReplicaSet
from waiting import SECONDS, wait_until

TOKEN = "known to the operator alone"


class Running:
    """`tailrace produce` in a process of its own, with the endpoint and a file as its sink."""

    def __init__(
        self, mongodb: ReplicaSet, database: Database[dict[str, Any]], folder: Path, store: str | None = None
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.database = database
        self._out = folder / "out.jsonl"
        self.store = store or f"file:{folder / 'positions'}"
        settings = {
            "TAILRACE_MONITOR__CONTROL_TOKEN": TOKEN,
            "TAILRACE_MONITOR__EVERY_SECONDS": "0.2",
            "TAILRACE_MONITOR__METRICS_PORT": self._address.rpartition(":")[2],
            "TAILRACE_CAPTURE__INVENTORY": str(folder / "keys.sqlite"),
        }
        where = ["--uri", mongodb.uri, "--name", "orders", "--store", self.store, "--sink", f"file:{self._out}"]
        self.process = GuardedProcess(
            [sys.executable, "-m", "tailrace.cli.app", "produce", database.name, *where],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **settings},
        )

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self._address + path, timeout=120) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self._address + path, json.dumps(body or {}).encode(), {"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def state(self) -> Any:
        return self.get("/state")

    def answers(self) -> bool:
        try:
            return bool(self.get("/healthz")["healthy"])
        except OSError:
            assert self.process.poll() is None, "the producer ended"
            return False

    def delivered(self) -> list[tuple[str, Any]]:
        events = (
            [json.loads(line)["value"] for line in self._out.read_text().splitlines()] if self._out.exists() else []
        )
        return [(event["operationType"], event["documentKey"]["_id"]) for event in events]


@pytest.fixture(scope="module")
def running(mongodb: ReplicaSet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with mongodb.client() as client:
        database = client["producer_site"]
        client.drop_database(database)
        database.orders.insert_one({"_id": 1})
        database.users.insert_one({"_id": 2})
        producer = Running(mongodb, database, tmp_path_factory.mktemp("producer-site"))
        try:
            wait_until(producer.answers, "the endpoint answers")
            _until(producer, lambda state: state.get("snapshot", {}).get("finished"))
            yield producer
        finally:
            producer.process.terminate()
            _, complaint = producer.process.communicate(timeout=SECONDS)
            client.drop_database(database)
    assert producer.process.returncode == 0, complaint
    assert TOKEN not in complaint


def test_a_spare_says_that_it_is_one_and_lets_nobody_believe_it_did_something(
    running: Running, mongodb: ReplicaSet, tmp_path: Path
) -> None:
    """Behind a name with several addresses, a pause may arrive at the process that does not run the stream."""
    standby = Running(mongodb, running.database, tmp_path, running.store)
    try:
        wait_until(standby.answers, "the standby answers")
        _until(standby, lambda state: state["standby"])
        assert not running.state()["standby"]
        for action in ("/pause", "/resume", "/snapshot", "/recover"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                standby.post(action)
            assert refused.value.code == 421
            assert "another process runs the stream" in json.load(refused.value)["message"]
        assert standby.state()["state"] == "idle"
    finally:
        standby.process.terminate()
        standby.process.communicate(timeout=SECONDS)


def test_a_producer_tells_its_state(running: Running, mongodb: ReplicaSet) -> None:
    before = running.state()
    running.database.orders.insert_one({})
    state = _until(running, lambda state: state["events"] > before["events"] and state["headroom_ratio"])
    assert state["name"] == "orders"
    assert state["state"] in ("idle", "live")
    assert state["proof"]
    assert state["token"].startswith("82")
    assert state["cluster_time"].startswith("20")
    assert state["position_age_seconds"] < 30
    assert state["window_seconds"] >= 0
    assert [shard["name"] for shard in state["shards"]] == [mongodb.name]
    assert (state["source"], state["delivery"], state["format"]) == ("change-stream", "at-least-once", "json")
    assert state["sink"].startswith("file:")
    assert state["snapshot"]["finished"]
    assert (state["dead_letters"], state["errors"]) == (0, {})


def test_a_paused_producer_reads_nothing_keeps_its_lease_and_goes_on(running: Running) -> None:
    before = running.delivered()
    running.post("/pause")
    paused = _until(running, lambda state: state["state"] == "paused")
    running.database.orders.insert_one({"_id": "written in the pause"})
    later = _until(running, lambda state: state["observed_at"] > paused["observed_at"])
    assert later["token"] == paused["token"]
    assert running.delivered() == before
    with open_store(running.store) as store:
        assert store.holder("orders") is not None
    running.post("/resume")
    expected = [*before, ("insert", "written in the pause")]
    wait_until(lambda: running.delivered() == expected, "what was written meanwhile")
    _until(running, lambda state: state["state"] in ("idle", "live"))


def test_a_snapshot_is_taken_beside_the_stream(running: Running) -> None:
    before = running.delivered()
    answer = running.post("/snapshot", {"namespaces": ["producer_site.users"]})
    assert answer["collections"] == ["producer_site.users"]
    wait_until(lambda: running.delivered() == [*before, ("read", 2)], "the users once more, and no orders")
    _until(running, lambda state: state["snapshot"]["finished"])
    running.database.orders.insert_one({"_id": "after the snapshot"})
    wait_until(lambda: running.delivered()[-1] == ("insert", "after the snapshot"), "the stream goes on")
    wait_until(
        lambda: _refusal(running, {"namespaces": ["elsewhere"]}) == 400, "no such collection"
    )  # 409 till it ends


def _refusal(running: Running, body: dict[str, Any]) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        running.post("/snapshot", body)
    return int(refused.value.code)


def test_a_recovery_is_shown_first_and_then_done(running: Running) -> None:
    before = running.delivered()
    forecast = running.post("/recover", {"dry_run": True})
    orders = running.database.orders.count_documents({})
    assert forecast["documents"] == {"producer_site.orders": orders, "producer_site.users": 1}
    assert running.delivered() == before
    running.post("/recover")
    state = _until(running, lambda state: state.get("recovery", {}).get("finished"))
    assert state["recovery"]["gap"] == 1
    assert [operation for operation, _ in running.delivered()[len(before) :]] == ["read"] * (orders + 1)
    with open_store(running.store) as store:
        (gap,) = GapLedger(store.cells, "orders").all()
    assert not gap.is_open
    with pytest.raises(urllib.error.HTTPError, match="400"):
        running.post("/recover", {"dry-run": True})


def _until(running: Running, condition: Callable[[Any], Any]) -> Any:
    """Give the first state that is as wanted."""
    found: list[Any] = []

    def look() -> bool:
        found[:] = [running.state()]
        return bool(condition(found[0]))

    wait_until(look, "the state that is wanted")
    return found[0]
