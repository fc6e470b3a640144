"""The engine's events against those of the shards of a real cluster, asked as a client and as a router asks them.

Before 6.0 a shard does not log the key of an inserted document: it takes the shard key from its catalog when the stream
is read. And a shard that a router asks leaves a stream open behind an invalidate, because the router closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import bson
import pytest
from bson import MaxKey

from engine.test_differential import Run, Stream, check_resuming, check_same, check_server_resuming
from tailrace.stand import ShardedCluster

ROUTER = {"fromMongos": True, "needsMerge": True}
ROUTER_OF_4_2 = {**ROUTER, "mergeByPBRT": True}
"""Without it a shard of 4.2 sorts as one of 4.0, whose positions are no tokens."""
KEYS: dict[str, dict[str, Any]] = {
    "by_user": {"user": 1},
    "by_two": {"user": 1, "day": 1},
    "by_path": {"who.name": 1},
    "by_id": {"_id": 1},
    "dropped": {"user": 1},
}


def document(number: int) -> dict[str, Any]:
    return {"_id": number, "user": number % 20, "day": "mon", "who": {"name": f"n{number % 3}", "age": number}}


def streams(version: str) -> Iterator[Stream]:
    """Every scope, as a client opens it and as a router does.

    Not yet as a router on 7.0: there a shard that is resumed begins behind the event of the position, and the engine
    with it, as earlier releases do.
    """
    is_old = version == "4.2.6"
    for asks, command in (("client", {}), ("router", ROUTER_OF_4_2 if is_old else ROUTER)):
        if asks == "router" and version == "7.0.28":
            return
        how: dict[str, Any] = {"command": command, "goes_on": is_old and asks == "router"}
        yield Stream(f"cluster, {asks}", "admin", **how)
        for database in ("shop", "other"):
            yield Stream(f"database {database}, {asks}", database, **how)
        for name in ("by_user", "by_path", "dropped", "plain"):
            yield Stream(f"collection {name}, {asks}", "shop", name, **how)
        yield Stream(f"collection of a dropped database, {asks}", "other", "by_user", **how)


def write(cluster: ShardedCluster) -> None:
    """Documents of all keys on both shards, a range that moves, a drop, a database that is dropped and made again."""
    for name, key in KEYS.items():
        cluster.shard_collection(f"shop.{name}", key)
    cluster.move_range("shop.by_user", "s1", min={"user": 10}, max={"user": MaxKey()})
    cluster.create_database("other")
    cluster.shard_collection("other.by_user", {"user": 1})
    primary = cluster.shard_client("s0")
    for number in range(20):
        for name in KEYS:
            cluster.insert(f"shop.{name}", document(number))
        cluster.insert("other.by_user", document(number))
        primary.shop.plain.insert_one(document(number))
        cluster.update("shop.by_user", {"_id": number, "user": number % 20}, {"$set": {"paid": True}})
    cluster.delete("shop.by_user", {"_id": 3, "user": 3})
    primary.shop.drop_collection("dropped")
    primary.drop_database("other")
    primary.other.again.insert_one({"_id": 1})
    for number in range(20, 24):
        cluster.insert("shop.by_user", document(number))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "version", ["4.2.6", *(pytest.param(each, marks=pytest.mark.long) for each in ("6.0.5", "7.0.28"))]
)
def test_shards_give_what_the_engine_gives(version: str, start_sharded: Callable[..., ShardedCluster]) -> None:
    """`make cluster` does the same on 6.0, and on 7.0 where Wine is installed."""
    cluster = start_sharded(version, shards=2, parameters={"writePeriodicNoops": False})
    cluster.create_database("shop")
    runs = {
        name: Run(cluster.shards[name], cluster.shard_client(name), 0, is_long=False) for name in sorted(cluster.shards)
    }
    write(cluster)
    keys: set[tuple[str, ...]] = set()
    for name, run in runs.items():
        run.finish()
        for stream in streams(version):
            ours, theirs = run.all_engine_events(stream), run.server_events(stream)
            check_same(stream, f"shard {name}", [event.raw for event in ours], theirs)
            # A router's stream that is started after an invalidate gives that once more.
            ours = [
                event for event, last in zip(ours, [None, *ours], strict=False) if last is None or event.raw != last.raw
            ]
            run.images = run.log  # type: ignore[assignment]  # what a replay knows of shard keys: the shard's own log
            check_resuming(run, stream, ours)
            check_server_resuming(run, stream, ours)
            decoded = [bson.decode(event) for event in theirs]
            keys |= {tuple(each["documentKey"]) for each in decoded if each["operationType"] == "insert"}
            types = [each["operationType"] for each in decoded]
            if name == "s0" and stream.name == "database other, router" and version == "4.2.6":
                assert types[types.index("invalidate") :].count("insert") == 1, "it goes on behind the invalidate"
    assert keys >= {("user", "_id"), ("user", "day", "_id"), ("who.name", "_id"), ("_id",)}
