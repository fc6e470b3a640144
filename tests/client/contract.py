"""What a release of pymongo has to do for us, as a program: it uses a server and prints what it got.

`contract.py URI [public]`: with `public`, as on a release that has changed what `tailrace.client.private` uses.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

if "public" in sys.argv:
    sys.modules["tailrace.client.private"] = None  # type: ignore[assignment]

import bson
import pymongo
from pymongo import AsyncMongoClient, MongoClient, ReadPreference
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from tailrace import client as commands
from tailrace.driver import watch
from tailrace.oplog.tail import LiveOplog

LARGE = "x" * 20_000
"""Batches of such documents are so large that the next one is asked for ahead."""


def synchronous(uri: str) -> dict[str, Any]:
    """Single events, batches, a resume after a lost cursor, an error, a time limit, and the oplog's tail."""
    with MongoClient[Any](uri, appname="contract") as client:
        orders = client.contract.orders
        orders.drop()
        found: dict[str, Any] = {}
        with watch(orders, max_await_time_ms=50) as stream:
            numbers(orders.insert_one, range(3))
            found["single"] = [next(stream)["fullDocument"]["_id"] for _ in range(3)]
            kill_cursors(client, "contract.orders")
            numbers(orders.insert_one, range(3, 5))
            found["after a lost cursor"] = [next(stream)["fullDocument"]["_id"] for _ in range(2)]
            token = stream.resume_token
            orders.insert_many([{"_id": number, "large": LARGE} for number in range(5, 205)])
            large = taken((batch.events for batch in stream.batches()), 200)
            found["large batches"] = large == list(range(5, 205))
        chosen = orders.with_options(read_preference=ReadPreference.NEAREST, read_concern=ReadConcern("majority"))
        with watch(chosen, resume_after=token, batch_size=7) as stream, pymongo.timeout(30):
            found["resumed"] = taken((batch.events for batch in stream.batches()), 200) == large
        with client.start_session() as session, watch(orders, session=session, max_await_time_ms=20) as stream:
            found["nothing"] = stream.try_next()
        found["refused"] = refusal(lambda: watch(orders, [{"$out": "elsewhere"}]))
        found["tail"] = tailed(client, orders)
        return found


async def asynchronous(uri: str) -> dict[str, Any]:
    """The same events by asyncio."""
    async with AsyncMongoClient[Any](uri) as client:
        orders = client.contract.numbers
        await orders.drop()
        async with watch(orders, max_await_time_ms=50) as stream:
            await orders.insert_many([{"_id": number, "large": LARGE} for number in range(200)])
            return {"async": [(await stream.next())["fullDocument"]["_id"] for _ in range(200)] == list(range(200))}


def tailed(client: MongoClient[Any], orders: Any) -> list[int]:
    """Read inserts from the oplog, behind the newest entry."""
    oplog = LiveOplog(client, await_ms=100)
    tail = oplog.open(oplog.newest() + 1)
    try:
        numbers(orders.insert_one, range(1000, 1005))
        seen: list[int] = []
        while len(seen) < 5:
            entries = [bson.decode(entry) for entry in next(tail).entries]
            seen += [entry["o"]["_id"] for entry in entries if entry["op"] == "i" and entry["ns"] == "contract.orders"]
        assert oplog.entry_at(oplog.newest())
        return seen
    finally:
        tail.close()


def numbers(insert: Callable[[dict[str, Any]], Any], chosen: Iterable[int]) -> None:
    for number in chosen:
        insert({"_id": number})


def taken(batches: Iterable[Any], count: int) -> list[int]:
    """Give the numbers of so many inserts."""
    seen: list[int] = []
    for events in batches:
        seen += [bson.decode(event)["fullDocument"]["_id"] for event in events]
        if len(seen) >= count:
            return seen
    return seen


def kill_cursors(client: MongoClient[Any], namespace: str) -> None:
    """Let the server forget the stream's cursor."""
    operations = client.admin.aggregate([{"$currentOp": {"idleCursors": True, "allUsers": True}}])
    ids = [each["cursor"]["cursorId"] for each in operations if each.get("ns") == namespace and "cursor" in each]
    database, _, collection = namespace.partition(".")
    client[database].command({"killCursors": collection, "cursors": ids})


def refusal(action: Callable[[], Any]) -> int | None:
    try:
        action()
    except OperationFailure as error:
        return error.code
    return None


if __name__ == "__main__":
    uri = sys.argv[1]
    result = {"pymongo": pymongo.version, "module": commands.chosen.__name__.rpartition(".")[2]}
    print(json.dumps(result | synchronous(uri) | asyncio.run(asynchronous(uri))))
