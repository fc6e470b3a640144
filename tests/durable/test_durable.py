"""A watch that survives its process: nothing is lost over kills, retries, takeovers and stops. Real servers only."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo import AsyncMongoClient
from pymongo.database import Database

import tailrace
from tailrace.capture.positions import open_store
from tailrace.errors import GapOpen, HandlerFailed, LeaseHeld, SettingsError
from tailrace.owned import GuardedProcess
from tailrace.stand import ReplicaSet
from waiting import SECONDS

NOW = {"until_idle": True, "commit_interval": 0.0}
PROGRAM = """
import sys, time
from pymongo import MongoClient
import tailrace

uri, database, store, out = sys.argv[1:]

def handle(event):
    with open(out, "a") as file:
        file.write(f"{event['documentKey']['_id']}\\n")
    time.sleep(0.002)

tailrace.consume(MongoClient(uri)[database].orders, handle, store=store, name="orders", lease_seconds=2)
"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'orders.pos'}"


def ids(events: list[Any]) -> list[int]:
    return [event["documentKey"]["_id"] for event in events]


def begin(database: Database[Any], store: str, **options: Any) -> None:
    """Let the stream have a position: it begins now."""
    tailrace.consume(database.orders, print, store=store, **NOW, **options)


def test_a_watch_goes_on_where_the_last_one_was(database: Database[Any], store: str) -> None:
    begin(database, store)
    database.orders.insert_many([{"_id": number} for number in range(10)])
    with tailrace.watch(database.orders, store=store, **NOW) as stream:
        assert stream.name == f"{database.name}.orders"
        assert ids([next(stream) for _ in range(4)]) == [0, 1, 2, 3]
    with tailrace.watch(database.orders, store=store, **NOW) as stream:
        assert ids(list(stream)) == [4, 5, 6, 7, 8, 9]
    with tailrace.watch(database.orders, store=store, **NOW) as stream:
        assert list(stream) == []


def test_an_event_that_was_not_done_comes_again(database: Database[Any], store: str) -> None:
    begin(database, store)
    database.orders.insert_many([{"_id": number} for number in range(3)])

    def break_at_the_second() -> None:
        with tailrace.watch(database.orders, store=store, **NOW) as stream:
            for event in stream:
                if event["documentKey"]["_id"] == 1:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_at_the_second()
    with tailrace.watch(database.orders, store=store, **NOW) as stream:
        assert ids(list(stream)) == [1, 2]


def test_batches_are_done_as_a_whole(database: Database[Any], store: str) -> None:
    begin(database, store)
    database.orders.insert_many([{"_id": number} for number in range(25)])
    batches: list[list[Any]] = []
    tailrace.consume(database.orders, batches.append, store=store, batch_size=10, **NOW)
    assert ids([event for batch in batches for event in batch]) == list(range(25))
    assert max(map(len, batches)) == 10


def test_a_handler_that_fails_is_called_again(database: Database[Any], store: str) -> None:
    begin(database, store)
    database.orders.insert_one({"_id": 1})
    calls: list[int] = []

    def handle(event: Any) -> None:
        calls.append(event["documentKey"]["_id"])
        if len(calls) < 3:
            raise ConnectionError("not yet")

    tailrace.consume(database.orders, handle, store=store, retries=3, **NOW)
    assert calls == [1, 1, 1]


def fails_on_two(event: Any) -> None:
    if event["documentKey"]["_id"] == 2:
        raise ValueError("two is too much")


def test_without_dead_letters_it_stops_before_the_event(database: Database[Any], store: str) -> None:
    begin(database, store)
    database.orders.insert_many([{"_id": number} for number in range(4)])
    for _ in range(2):
        with pytest.raises(HandlerFailed, match="two is too much") as failure:
            tailrace.consume(database.orders, fails_on_two, store=store, retries=0, **NOW)
        assert isinstance(failure.value.__cause__, ValueError)
    with tailrace.watch(database.orders, store=store, **NOW) as stream:
        assert ids(list(stream)) == [2, 3]


@pytest.mark.parametrize("batch_size", [1, 10])
def test_dead_letters_keep_the_event_and_the_stream_goes_on(
    batch_size: int, database: Database[Any], store: str, tmp_path: Path
) -> None:
    begin(database, store)
    database.orders.insert_many([{"_id": number} for number in range(4)])
    handled: list[int] = []

    def handle(given: Any) -> None:
        for event in given if batch_size > 1 else [given]:
            fails_on_two(event)
        handled.extend(ids(given if batch_size > 1 else [given]))

    letters = f"file:{tmp_path / 'dead'}"
    tailrace.consume(
        database.orders, handle, store=store, retries=0, dead_letters=letters, batch_size=batch_size, **NOW
    )
    assert handled == [0, 1, 3]
    (letter,) = (tmp_path / "dead" / "dead-letters.jsonl").read_text().splitlines()
    assert json.loads(letter)["cause"] == "handler-failed"
    kept: list[tuple[bytes, HandlerFailed]] = []
    database.orders.delete_one({"_id": 2})
    tailrace.consume(
        database.orders, fails_on_two, store=store, retries=0, dead_letters=lambda *both: kept.append(both), **NOW
    )
    assert bson.decode(kept[0][0])["operationType"] == "delete"


def test_a_declared_handler(database: Database[Any], store: str) -> None:
    seen: list[Any] = []

    @tailrace.handler(store=store, name="declared", **NOW)
    def keep(event: Any) -> None:
        """Keep it."""
        seen.append(event)

    keep.run(database.orders)
    database.orders.insert_one({"_id": 7})
    keep.run(database.orders)
    keep({"documentKey": {"_id": 8}})
    assert ids(seen) == [7, 8]
    assert keep.__doc__ == "Keep it."


def test_databases_filters_and_snapshots(database: Database[Any], store: str) -> None:
    database.orders.insert_many([{"_id": number, "paid": number % 2 == 0} for number in range(4)])
    with tailrace.watch(database, store=store, name="all", start="snapshot", **NOW) as stream:
        assert sorted(ids(list(stream))) == [0, 1, 2, 3]
    only_paid = [{"$match": {"fullDocument.paid": True}}]
    with tailrace.watch(database, only_paid, store=store, name="paid", **NOW) as stream:
        assert list(stream) == []
    database.orders.insert_many([{"_id": number, "paid": number % 2 == 0} for number in range(4, 8)])
    with tailrace.watch(database, only_paid, store=store, name="paid", **NOW) as stream:
        assert ids(list(stream)) == [4, 6]


def test_the_position_of_an_idle_stream_moves(database: Database[Any], store: str) -> None:
    """Otherwise it would fall out of the oplog while nothing happens."""
    begin(database, store)
    before = open_store(store).load(f"{database.name}.orders")
    database.others.insert_one({})
    begin(database, store)
    after = open_store(store).load(f"{database.name}.orders")
    assert before
    assert after
    assert after.cluster_time > before.cluster_time


def test_stop_ends_a_stream_that_waits(database: Database[Any], store: str) -> None:
    with tailrace.watch(database.orders, store=store) as stream:
        threading.Timer(0.5, stream.stop).start()
        assert list(stream) == []
    assert open_store(store).holder(stream.name) is None


def test_one_process_delivers_and_the_other_stands_by(database: Database[Any], store: str) -> None:
    with tailrace.watch(database.orders, store=store):
        _wait(lambda: open_store(store).holder(f"{database.name}.orders") is not None)
        with (
            tailrace.watch(database.orders, store=store, lease_timeout=0.2) as second,
            pytest.raises(LeaseHeld),
        ):
            next(second)


def test_a_slow_handler_keeps_its_lease(database: Database[Any], store: str) -> None:
    begin(database, store, lease_seconds=2.0)
    database.orders.insert_many([{"_id": 1}, {"_id": 2}])
    seen: list[Any] = []

    def handle(event: Any) -> None:
        seen.append(event)
        time.sleep(3.0)

    tailrace.consume(database.orders, handle, store=store, lease_seconds=2.0, **NOW)
    assert ids(seen) == [1, 2]


def test_lost_history_ends_it_and_nothing_is_skipped(start_mongodb: Callable[..., ReplicaSet], store: str) -> None:
    server = start_mongodb(oplog_mb=1)
    with server.client() as client:
        orders = client.shop.orders
        orders.insert_one({"_id": 0})
        begin(client.shop, store)
        server.roll_over_oplog()
        with pytest.raises(GapOpen):
            tailrace.consume(orders, print, store=store, **NOW)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"start": "later"}, SettingsError),
        ({"recover": True}, SettingsError),
        *[({name: value}, SettingsError)
          for name in ("batch_size", "buffer_mb", "commit_interval", "lease_seconds", "lease_timeout", "retry_seconds")
          for value in ("x", None, -1, float("nan"), True)],
        *[({"name": name}, SettingsError) for name in ("", "~gaps", 5)],
        *[({"store": store}, SettingsError) for store in (5, Path("folder"), "nowhere", "")],
        ({"nonsense": 1}, TypeError),
        ({"resume_after": "x"}, TypeError),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict[str, Any], error: type, database: Database[Any], store: str) -> None:
    """Before anything is opened: a name with a tilde would have been taken for the ledger's."""
    (name,) = wrong
    for call in (tailrace.watch, lambda target, **options: tailrace.consume(target, print, **options)):
        with pytest.raises(error, match=name):
            call(database.orders, **{"store": store, **wrong})


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        *[({"dead_letters": value}, SettingsError) for value in ("nowhere", 5)],
        *[({"retries": value}, SettingsError) for value in (-1, "x", 1.5, None)],
        *[({"metrics_port": value}, SettingsError) for value in (-1, "x", 99999)],
        *[({"handle": value}, TypeError) for value in (None, "x", 5)],
        ({"store": None}, SettingsError),
    ],
    ids=str,
)
def test_wrong_handlers_are_refused(wrong: dict[str, Any], error: type, database: Database[Any], store: str) -> None:
    """A handler that is no function waited for the first event to fail on it."""
    with pytest.raises(error):
        tailrace.consume(database.orders, **{"handle": print, "store": store, **wrong})


def test_mistakes_of_a_call_are_said_in_its_own_words(database: Database[Any], store: str) -> None:
    with pytest.raises(TypeError, match=r"consume\(\) needs a store for its position, such as store='file:orders.pos'"):
        tailrace.consume(database.orders, print)
    with pytest.raises(TypeError, match=r"@tailrace\.handler\(store="):
        tailrace.handler(print)  # as a decorator without parentheses
    with pytest.raises(TypeError, match=r"@handler has no option 'retires'; it has batch_size, .*retries"):
        tailrace.handler(store=store, retires=3)
    with pytest.raises(TypeError, match=r"watch\(\) without a store has no option 'name'"):
        tailrace.watch(database.orders, name="orders")

    async def handle(event: Any) -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        tailrace.consume(database.orders, handle, store=store)


def test_asynchronous(mongodb: ReplicaSet, database: Database[Any], store: str) -> None:
    begin(database, store)
    database.orders.insert_many([{"_id": number} for number in range(6)])

    async def run() -> list[Any]:
        seen: list[Any] = []
        async with AsyncMongoClient(mongodb.uri) as client:
            orders = client[database.name].orders
            async with tailrace.watch(orders, store=store, **NOW) as stream:
                seen += [await anext(stream) for _ in range(2)]

            async def handle(event: Any) -> None:
                if len(seen) == 2:
                    seen.append(event)
                    raise ConnectionError("once")
                seen.append(event)

            await tailrace.consume(orders, handle, store=store, **NOW)
            task = asyncio.create_task(tailrace.consume(orders, handle, store=store))
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return seen

    assert ids(asyncio.run(run())) == [0, 1, 2, 2, 3, 4, 5]
    assert open_store(store).holder(f"{database.name}.orders") is None


def started(mongodb: ReplicaSet, database: Database[Any], store: str, out: Path) -> GuardedProcess:
    command = [sys.executable, "-c", PROGRAM, mongodb.uri, database.name, store, str(out)]
    return GuardedProcess(command, stderr=subprocess.PIPE, text=True)


def _wait(is_there: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def handled(out: Path) -> list[int]:
    return [int(line) for line in out.read_text().split()] if out.exists() else []


def test_killed_again_and_again_it_handles_every_event(
    mongodb: ReplicaSet, database: Database[Any], store: str, tmp_path: Path
) -> None:
    """Each process dies by SIGKILL somewhere; the next of the name goes on, with nothing missing or out of order."""
    begin(database, store, name="orders")
    out = tmp_path / "handled"
    database.orders.insert_many([{"_id": number} for number in range(1_000)])
    for target in (100, 300, 600):
        process = started(mongodb, database, store, out)
        _wait(lambda target=target: len(set(handled(out))) > target)  # type: ignore[misc]
        process.kill()
        process.wait(SECONDS)
    process = started(mongodb, database, store, out)
    _wait(lambda: len(set(handled(out))) == 1_000)
    process.send_signal(signal.SIGTERM)
    _, complaint = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, complaint
    assert list(dict.fromkeys(handled(out))) == list(range(1_000)), "the first time in order"
    assert len(handled(out)) < 2_000, "a restart repeats what was not committed, not everything"
    position = open_store(store).load("orders")
    assert position
    assert position.counts.events >= 1_000


def test_what_is_written_once_it_is_open_is_delivered(database: Database[Any], store: str) -> None:
    """As with a driver's stream: it begins when it is made, not when its thread has come that far."""
    with tailrace.watch(database.orders, store=store, name="orders") as stream:
        database.orders.insert_one({"_id": 1})
        database.orders.insert_one({"_id": 2})
        assert ids([next(stream), next(stream)]) == [1, 2]
