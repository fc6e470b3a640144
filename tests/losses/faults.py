"""The rows of the table: what is done to a tool, or to the servers around it, while a writer writes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from losses.tools import RunningTool
from nemesis.line import Servers
from tailrace.stand import ReplicaSet


@dataclass(frozen=True, slots=True)
class Stage:
    """What a fault can lay its hands on."""

    servers: Servers[ReplicaSet]
    tool: RunningTool
    start_instance: Callable[[], RunningTool]
    """Starts one more instance of the tool with the same settings."""
    database: str
    dice: random.Random

    @property
    def uri(self) -> str:
        """The replica set."""
        return self.servers.mongodb.uri


def no_fault(stage: Stage) -> None:
    """None: the tool at rest."""
    time.sleep(5)


def random_kills(stage: Stage) -> None:
    """SIGKILL of the tool, ten times at random moments."""
    for _ in range(10):
        time.sleep(stage.dice.uniform(0.5, 6))
        stage.tool.service.kill()


def two_instances(stage: Stage) -> None:
    """A second instance with the same settings runs beside the first, which is then killed."""
    stage.start_instance()
    time.sleep(15)
    stage.tool.service.kill()
    time.sleep(15)


def paused_beside_standby(stage: Stage) -> None:
    """The tool is stopped (SIGSTOP) for half a minute beside a second instance, and then goes on."""
    stage.start_instance()
    time.sleep(10)
    stage.tool.service.pause()
    time.sleep(30)
    stage.tool.service.resume()
    time.sleep(5)


def broker_away(stage: Stage) -> None:
    """The broker is killed and comes back after half a minute."""
    stage.servers.broker.kill()
    time.sleep(30)
    stage.servers.broker.restart()


def half_open(stage: Stage) -> None:
    """Connections to the broker stay open and carry nothing for half a minute."""
    stage.servers.proxy.black_hole()
    time.sleep(30)
    stage.servers.proxy.heal()


def primary_killed(stage: Stage) -> None:
    """The primary is killed, another one is elected, and it comes back."""
    primary = stage.servers.mongodb.primary
    primary.kill()
    time.sleep(10)
    primary.restart()


def rollback(stage: Stage) -> None:
    """A primary takes writes that nobody else hears (w: 1), and they are rolled back after an election."""
    old = stage.servers.mongodb.primary
    others = [node for node in stage.servers.mongodb.nodes if node is not old]
    for node in others:
        node.kill()
    with MongoClient[Any](old.uri, directConnection=True, w=1, socketTimeoutMS=2_000) as client:
        try:
            for number in range(20):
                client[stage.database].orders.insert_one({"_id": f"taken back {number}", "write": -number})
        except PyMongoError:
            pass
    old.pause()
    for node in others:
        node.restart()
    time.sleep(5)
    old.resume()


def dropped_and_renamed(stage: Stage) -> None:
    """The collection is dropped; another one takes its name."""
    with MongoClient[Any](stage.uri, w="majority") as client:
        orders = client[stage.database].orders
        time.sleep(2)
        orders.drop()
        time.sleep(2)
        client[stage.database].other.insert_one({"_id": "renamed", "write": -1})
        client[stage.database].other.rename("orders", dropTarget=True)
        time.sleep(2)


def large_record(stage: Stage) -> None:
    """A document of 3 MB, where the topic takes 1 MB."""
    with MongoClient[Any](stage.uri, w="majority") as client:
        client[stage.database].orders.insert_one({"_id": "large", "write": -1, "filler": "x" * 3_000_000})
    time.sleep(5)


def large_event(stage: Stage) -> None:
    """An update whose event is over 16 MB."""
    size = 16 * 1024 * 1024 - 300
    with MongoClient[Any](stage.uri, w="majority") as client:
        orders = client[stage.database].orders
        orders.insert_one({"_id": "event", "write": -1})
        orders.update_one({"_id": "event"}, {"$set": {"write": -2, "filler": "x" * size}})
    time.sleep(5)


def invalid_utf8(stage: Stage) -> None:
    """A string that is not UTF-8, as drivers that do not check can write."""
    good = bson.encode({"_id": "invalid", "write": -1, "text": "PLACE"})
    with MongoClient[Any](stage.uri, w="majority") as client:
        client[stage.database].orders.insert_one(RawBSONDocument(good.replace(b"PLACE", b"\xff\xfe\xfdab")))
    time.sleep(5)


FAULTS: dict[str, Callable[[Stage], None]] = {
    "none": no_fault,
    "ten kills": random_kills,
    "two instances at once": two_instances,
    "paused beside a second instance": paused_beside_standby,
    "broker away for half a minute": broker_away,
    "half-open connections to the broker": half_open,
    "primary killed": primary_killed,
    "rollback election": rollback,
    "collection dropped and renamed": dropped_and_renamed,
    "record over the topic's limit": large_record,
    "event over 16 MB": large_event,
    "invalid UTF-8": invalid_utf8,
}
