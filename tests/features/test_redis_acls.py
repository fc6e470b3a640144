"""The rules of Redis' ACL per verb, as the security page lists them: they are enough, and none can be left out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import bson
import pytest
import redis
from bson import Timestamp

from docs.pages import read as page
from feature_changes import delete, every_kind, moment, put, version
from tailrace.capture.dead_letters.dead_letters import NoDeadLetters
from tailrace.capture.positions import Position, open_store
from tailrace.capture.record import Record
from tailrace.capture.sinks.redis_cache import RedisCacheSink
from tailrace.cli.app import run
from tailrace.dashboard.sources.features import FeaturesSource
from tailrace.errors import NotAuthorized
from tailrace.features import FeatureStore
from tailrace.features.progress import Progress, ProgressStore
from tailrace.stand import Redis

NAME = "spending"


def features(url: str) -> None:
    """What the job does: a backfill, batches with updates and deletes; windows have slid since they were computed."""
    now = time.time()
    store = FeatureStore(redis.Redis.from_url(url), every_kind(NAME), clock=lambda: now - 50)
    progress = ProgressStore.connect(url, NAME)
    store.begin()
    for turn in range(2):
        store.apply(
            put(10 * turn + each, {"_id": each, "user": "ann", "amount": each + turn, "merchant": f"m{each}",
                                   "at": moment(round(now * 1000) - 100_000 + each)})
            for each in range(5)
        )  # fmt: skip
    store.apply([delete(99, 3)])
    store.forget_before(version(5))
    progress.filled("82", 1)
    progress.check(0)
    progress.save(Progress(0, "8200", 1))
    progress.position()
    progress.undisturbed(lambda: None)


def lookup(url: str) -> None:
    if run(["lookup", NAME, "ann", "--redis", url]):
        raise NotAuthorized("as printed")


def dashboard(url: str) -> None:
    source = FeaturesSource(url)
    try:
        source.poll()
    finally:
        source.close()


def positions(url: str) -> None:
    with open_store(url) as store:
        store.names()
        lease = store.acquire("orders", "host/1", seconds=30)
        position = Position(bson.encode({"_data": "8200000001000000012B0229296E04"}), Timestamp(1, 1))
        store.save(position, lease)
        store.cells.changes("orders", 3)
        store.cells.seconds_since_written("orders", store.cells.read("orders") or b"")


def sink(url: str) -> None:
    made = RedisCacheSink(url, "cart:{_id}", NoDeadLetters())
    made.connect()
    event = bson.encode({"documentKey": {"_id": 1}})
    made.deliver([Record(b"1", b"{}", [], "shop.carts", "update", event)])


VERBS: dict[str, Callable[[str], None]] = {
    "tailrace features": features, "tailrace lookup": lookup, "tailrace dashboard": dashboard,
    "capture.position_store": positions, "capture.sink": sink,
}  # fmt: skip


def rows() -> Iterator[Any]:
    table = page("security.md").split("| command | rules |\n|---|---|\n")[1].split("\n\n")[0]
    for line in table.splitlines():
        command, rules = line.strip("| ").split(" | ")
        name = re.findall(r"`([^`]+)`", command)[0]
        yield pytest.param(name, re.findall(r"`([^`]+)`", rules)[0].split(), id=name)


def user_with(server: Redis, rules: list[str]) -> str:
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "capture", "reset", "on", ">secret", *rules)
    return f"redis://capture:secret@{server.address}/0"


@pytest.mark.parametrize(("verb", "rules"), list(rows()))
def test_the_rules_are_enough_and_none_can_be_left_out(
    start_server: Callable[..., Any], capsys: pytest.CaptureFixture[str], verb: str, rules: list[str]
) -> None:
    server: Redis = start_server(Redis, {"appendonly": "no"})

    def prepared() -> None:
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
            client.script_flush()
        if verb in ("tailrace lookup", "tailrace dashboard"):
            features(server.url)

    prepared()
    VERBS[verb](user_with(server, rules))
    for left_out in rules:
        prepared()
        try:
            VERBS[verb](user_with(server, [rule for rule in rules if rule != left_out]))
        except NotAuthorized as error:
            text = str(error) + capsys.readouterr().err
        else:
            pytest.fail(f"{left_out} is not needed")
        wanted = "key" if left_out.startswith("~") else left_out.removeprefix("+").partition("|")[0]
        assert wanted in re.findall(r"\w+", text.partition("lacks ")[2]), f"without {left_out}: {text}"
        assert "ann" not in text, "a key is a value of a document"
