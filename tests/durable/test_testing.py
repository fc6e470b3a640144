"""The public fake: events have the form of the server's, and handlers are called as `consume` calls them."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

import tailrace
from tailrace.errors import HandlerFailed
from tailrace.testing import delete, deliver, insert, replace, update
from tailrace.token import ResumeToken

NS = "shop.orders"


def shape(event: dict[str, Any]) -> dict[str, str]:
    return {name: type(value).__name__ for name, value in event.items() if name not in ("wallTime", "lsid")}


def test_events_look_like_the_servers(database: Database[Any]) -> None:
    ns = f"{database.name}.orders"
    with tailrace.watch(database.orders) as stream:
        database.orders.insert_one({"_id": 1, "a": 1, "b": 1})
        database.orders.update_one({"_id": 1}, {"$set": {"a": 2}, "$unset": {"b": 1}})
        database.orders.replace_one({"_id": 1}, {"c": 1})
        database.orders.delete_one({"_id": 1})
        real = [next(stream) for _ in range(4)]
    made = [
        insert(ns, {"_id": 1, "a": 1, "b": 1}),
        update(ns, 1, {"a": 2}, ["b"]),
        replace(ns, {"_id": 1, "c": 1}),
        delete(ns, 1),
    ]
    for ours, servers in zip(made, real, strict=True):
        assert shape(ours) == shape(servers)
        for name in ("operationType", "ns", "documentKey", "fullDocument", "updateDescription"):
            assert ours.get(name) == servers.get(name)
    times = [ResumeToken.parse(event["_id"]).cluster_time for event in made]
    assert times == sorted(times)


def test_handlers_are_retried_and_dead_lettered_as_in_production() -> None:
    calls: list[int] = []

    @tailrace.handler(store="file:never-opened", retries=2, dead_letters="file:never-written")
    def handle(event: Any) -> None:
        calls.append(event["documentKey"]["_id"])
        if event["documentKey"]["_id"] == 2:
            raise ValueError("no")

    delivered = deliver(handle, [insert(NS, {"_id": number}) for number in (1, 2, 3)])
    assert calls == [1, 2, 2, 2, 3]
    assert delivered.handled == 2
    assert len(delivered.pauses) == 2
    ((letter, error),) = delivered.dead_letters
    assert letter["documentKey"] == {"_id": 2}
    assert isinstance(error, HandlerFailed)


def test_without_dead_letters_it_raises() -> None:
    def handle(event: Any) -> None:
        raise ValueError("no")

    with pytest.raises(HandlerFailed):
        deliver(handle, [insert(NS, {"_id": 1})], retries=0)


def test_a_crash_delivers_again() -> None:
    seen: list[Any] = []
    deliver(seen.append, [insert(NS, {"_id": number}) for number in range(3)], crash_after=2)
    assert [event["documentKey"]["_id"] for event in seen] == [0, 1, 0, 1, 2]


def test_batches_and_coroutines() -> None:
    sizes: list[int] = []

    async def handle(events: list[Any]) -> None:
        sizes.append(len(events))

    deliver(handle, [insert(NS, {"_id": number}) for number in range(5)], batch_size=2)
    assert sizes == [2, 2, 1]


def test_an_inserted_document_gets_its_id_as_from_the_driver() -> None:
    event = insert(NS, {"total": 5})
    assert event["fullDocument"] == {"_id": event["documentKey"]["_id"], "total": 5}
    assert insert(NS, {})["documentKey"] != insert(NS, {})["documentKey"]


def test_what_no_server_would_send_is_refused() -> None:
    for wrong in ("shop", "shop.", ".orders"):
        with pytest.raises(ValueError, match=r"db\.collection"):
            delete(wrong, 1)
    with pytest.raises(ValueError, match="_id"):
        replace(NS, {"total": 5})
    with pytest.raises(TypeError, match="no function"):
        deliver(None, [])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"deliver\(\) has no option 'retires'"):
        deliver(print, [], retires=5)
