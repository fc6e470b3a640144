"""A producer is stopped for longer than its lease, another takes over, and the first one is continued.

What it still had in its hands must not come between the records of the other one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from pymongo.database import Database

from capture_harness import Harness, ListSink, run_in_background
from crash_process import start_capture
from tailrace.capture.kafka_client import KafkaAddress
from tailrace.capture.positions import open_store, this_process
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.recovery.topic_reader import TopicContents, topics_like
from tailrace.errors import LeaseHeld
from tailrace.settings import Settings
from tailrace.stand import Kafka, Postgres, ReplicaSet
from waiting import SECONDS, wait_until

_LEASE_SECONDS = 3.0


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@contextmanager
def producing(flags: dict[str, Any], **options: Any) -> Iterator[Any]:
    process = start_capture(flags, **options)
    try:
        yield process
    finally:
        process.kill()
        process.join(SECONDS)


def lines_of(file: Path) -> list[int]:
    """The numbers in the lines that are written to their end."""
    lines = file.read_bytes().split(b"\n")[:-1]
    return [orjson.loads(line)["value"]["fullDocument"]["n"] for line in lines]


def records_of(kafka: Kafka, prefix: str) -> list[int]:
    address = KafkaAddress(kafka.bootstrap_servers)
    messages = TopicContents(address, topics_like(address, rf"{prefix}\..*\.counters")).messages()
    return [orjson.loads(message.value)["fullDocument"]["n"] for message in messages if message.value]


def runs_of(numbers: list[int]) -> list[list[int]]:
    """Cut the numbers of one document where they do not go on by one."""
    runs: list[list[int]] = []
    for number in numbers:
        if not runs or number != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    return runs


def stop_and_continue(
    mongodb: ReplicaSet,
    database: Database[dict[str, Any]],
    flags: dict[str, Any],
    seen: Callable[[], list[int]],
    point: str,
) -> None:
    flags = {
        "mongodb.uri": mongodb.uri,
        "capture.namespaces": (f"{database.name}.counters",),
        "capture.lease_seconds": _LEASE_SECONDS,
        "capture.start": "now",
        **flags,
    }
    counters = database.counters
    start_capture(flags, stop_when_idle=True).join(SECONDS)  # begins from now
    with producing(flags, stop_at=(point, 3)) as first:
        written = 0
        while not is_stopped(first.pid):
            counters.replace_one({"_id": 1}, {"n": written}, upsert=True)
            written += 1
        with producing(flags) as second:
            for _ in range(200):
                counters.replace_one({"_id": 1}, {"n": written})
                written += 1
            wait_until(lambda: written - 1 in seen(), "the second one takes over and delivers", 120)
            assert is_stopped(first.pid)
            os.kill(first.pid, signal.SIGCONT)
            for _ in range(200):
                counters.replace_one({"_id": 1}, {"n": written})
                written += 1
            first.join(SECONDS)
            assert first.exitcode == 1, "who was taken over stops"
            wait_until(lambda: written - 1 in seen(), "all of it", 60)
            assert second.is_alive()
    runs = runs_of(seen())
    assert len(runs) <= 2, f"an old record came between newer ones: {[(run[0], run[-1]) for run in runs]}"
    assert sorted(set(seen())) == list(range(written))


@pytest.mark.parametrize("store", ["file", "postgresql", "kafka"])
def test_who_slept_gives_nothing_to_a_file(
    mongodb: ReplicaSet,
    database: Database[dict[str, Any]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    store: str,
) -> None:
    output = tmp_path / "events.jsonl"
    output.touch()
    flags = {
        "capture.name": f"{database.name}-{tmp_path.parent.name[-6:]}",
        "capture.sink": f"file:{output}",
        "capture.dead_letters": "stop",
        "capture.position_store": url_of(store, request, tmp_path),
    }
    stop_and_continue(mongodb, database, flags, lambda: lines_of(output), "converted")


@pytest.mark.parametrize(("point", "linger_ms"), [("converted", 0), ("added", 100)])
def test_who_slept_gives_nothing_to_kafka(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], kafka: Kafka, tmp_path: Path, point: str, linger_ms: int
) -> None:
    """Stopped at `added`, the records linger in the client library, which has threads of its own."""
    prefix = f"{database.name}-{tmp_path.parent.name[-6:]}-{point}"
    flags = {
        "capture.name": prefix,
        "capture.sink": f"kafka://{kafka.bootstrap_servers}?linger.ms={linger_ms}",
        "capture.topic_prefix": prefix,
        "capture.position_store": f"file:{tmp_path / 'positions'}",
    }
    stop_and_continue(mongodb, database, flags, lambda: records_of(kafka, prefix), point)


def url_of(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if store == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        return server.dsn
    if store == "kafka":
        broker: Kafka = request.getfixturevalue("kafka")
        return f"kafka://{broker.bootstrap_servers}/{tmp_path.parent.name[-6:]}-takeover"
    return f"file:{tmp_path / 'positions'}"


@pytest.mark.parametrize("command", ["collStats", "ping"])
def test_a_call_that_takes_longer_than_the_lease_is_no_reason_for_a_takeover(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path, command: str
) -> None:
    """Else one standby after the other would begin the same recovery, and none would ever end it.

    `collStats` is a part of the plan; `ping` is asked by the very thread that delivers, before each chunk.
    """
    database.orders.insert_many([{"_id": key} for key in range(10)])
    slow = {"failCommands": [command], "blockConnection": True, "blockTimeMS": 4_000, "appName": tmp_path.name}
    with mongodb.client(appname=tmp_path.name) as client, open_store(f"file:{tmp_path / 'positions'}") as store:
        client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=slow)
        harness = Harness(client, tmp_path, [f"{database.name}.orders"], options={"lease_seconds": 1.5})
        with harness.running() as producer:
            wait_until(lambda: producer.backfilling, "the recovery begins")
            with pytest.raises(LeaseHeld):
                store.wait_for_lease("orders", this_process(), seconds=1.5, timeout=3.5)
            wait_until(lambda: len(harness.delivered) == 10, "the rows")


@pytest.mark.long
@pytest.mark.parametrize("store", ["file", "postgresql"])
def test_a_broker_that_is_away_is_no_reason_for_a_takeover(
    mongodb: ReplicaSet,
    database: Database[dict[str, Any]],
    request: pytest.FixtureRequest,
    start_server: Callable[..., Any],
    tmp_path: Path,
    store: str,
) -> None:
    """A call to it takes ten seconds, several times as long as the lease: two producers would take turns, and each turn
    ends the one before. `make crash` runs it.
    """
    broker = start_server(Kafka)
    settings = Settings.load(
        flags={
            "mongodb.uri": mongodb.uri,
            "capture.name": f"away-{database.name}",
            "capture.namespaces": (f"{database.name}.orders",),
            "capture.sink": f"kafka://{broker.bootstrap_servers}",
            "capture.topic_prefix": database.name,
            "capture.position_store": url_of(store, request, tmp_path),
            "capture.lease_seconds": 3.0,
        }
    )
    database.orders.insert_one({"_id": 0})
    with (
        mongodb.client() as client,
        Capture.open(settings, client) as one,
        Capture.open(settings, client) as other,
        open_store(settings.capture.position_store.get_secret_value()) as onlooker,
    ):
        with run_in_background(one.producer()) as holder:
            wait_until(lambda: holder.delivered >= 1, "the stream runs")
            with run_in_background(other.producer()) as standby:
                wait_until(lambda: "another process holds" in standby.status.liveness().proof, "the other one waits")
                broker.kill()
                database.orders.insert_many([{"_id": key} for key in range(1, 20)])
                wait_until(lambda: sum(holder.status.errors().values()) >= 3, "three calls have waited in vain")
                broker.restart()
                wait_until(lambda: holder.delivered >= 20, "the holder goes on")
                changes = onlooker.history(settings.capture.name)
        assert [change.what for change in changes if change.what != "moved"] == ["acquired"]


def test_a_sink_is_told_how_long_its_producer_has_the_lease(
    database: Database[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that writes in a thread of its own asks before each write (`test_worker.py`)."""
    bound: list[Callable[[], float]] = []
    monkeypatch.setattr(ListSink, "bind", lambda _, seconds_left: bound.append(seconds_left))
    harness = Harness(database.client, tmp_path, [f"{database.name}.orders"], options={"lease_seconds": 50.0})
    harness.run_until_idle()
    (seconds_left,) = bound
    assert 50 >= seconds_left() > seconds_left() > 0
