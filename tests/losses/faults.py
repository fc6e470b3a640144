"""The rows of the table: what is done to a tool, or to the servers around it, while a writer writes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import PyMongoError, WriteError

from losses.tools import RunningTool
from nemesis.line import Servers
from nemesis.small_disk import filled
from tailrace.stand import ReplicaSet


@dataclass(frozen=True, slots=True)
class Stage:
    """What a fault can lay its hands on."""

    servers: Servers[ReplicaSet]
    tool: RunningTool
    start_instance: Callable[[], RunningTool]
    """Starts one more instance of the tool with the same settings."""
    wait_until_delivering: Callable[[], None]
    """Waits until one more change is in the topic."""
    database: str
    folder: Path
    """What the tool keeps of its own on this machine."""
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


def kills_at_work(stage: Stage) -> None:
    """SIGKILL of the tool, ten times, each when it has delivered again."""
    for _ in range(10):
        stage.wait_until_delivering()
        time.sleep(stage.dice.uniform(0.5, 3))
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
    """The collection is dropped; another one takes its name, and its documents count as inserted."""
    with MongoClient[Any](stage.uri, w="majority") as client:
        orders = client[stage.database].orders
        time.sleep(2)
        orders.drop()
        time.sleep(2)
        client[stage.database].other.insert_one({"_id": "renamed", "write": -1})
        client[stage.database].other.rename("orders", dropTarget=True)
        time.sleep(2)


def large_record(stage: Stage) -> None:
    """A document of 3 MB that no compression makes small, where the topic takes 1 MB."""
    filler = stage.dice.randbytes(1_500_000).hex()
    with MongoClient[Any](stage.uri, w="majority") as client:
        client[stage.database].orders.insert_one({"_id": "large", "write": -1, "filler": filler})
    time.sleep(5)


def large_event(stage: Stage) -> None:
    """An update whose event is over 16 MB."""
    size = 16 * 1024 * 1024 - 300
    with MongoClient[Any](stage.uri, w="majority") as client:
        orders = client[stage.database].orders
        orders.insert_one({"_id": "event", "write": -1})
        _until_taken(lambda: orders.update_one({"_id": "event"}, {"$set": {"write": -2, "filler": "x" * size}}))
    time.sleep(5)


def _until_taken(write: Callable[[], object]) -> None:
    """A server with a small cache refuses a large write while it is busy."""
    for _ in range(30):
        try:
            write()
            return
        except WriteError:
            time.sleep(1)
    raise AssertionError("the server never takes the write")


def invalid_utf8(stage: Stage) -> None:
    """A string that is not UTF-8, as drivers that do not check can write."""
    good = bson.encode({"_id": "invalid", "write": -1, "text": "PLACE"})
    with MongoClient[Any](stage.uri, w="majority") as client:
        client[stage.database].orders.insert_one(RawBSONDocument(good.replace(b"PLACE", b"\xff\xfe\xfdab")))
    time.sleep(5)


def disk_full(stage: Stage) -> None:
    """The disk that the tool keeps its own files on is full for a quarter of a minute."""
    with filled(stage.folder):
        time.sleep(15)


def torn_position(stage: Stage) -> None:
    """The tool is killed, and of its stored position half is left."""
    stage.tool.service.hold()
    stage.tool.position.tear()
    stage.tool.service.release()


def restored_position(stage: Stage) -> None:
    """The tool is killed, and its stored position is put back to what it was some seconds ago."""
    backup = stage.tool.position.copy()
    time.sleep(5)
    stage.tool.service.hold()
    stage.tool.position.put(backup)
    stage.tool.service.release()


def rolled_over(stage: Stage) -> None:
    """The tool is down while writes go on, for so long that the oplog has nothing left of them."""
    stage.tool.service.hold()
    time.sleep(5)
    stage.servers.mongodb.roll_over_oplog()
    stage.tool.service.release()


class Ground(Enum):
    """What a fault needs to happen."""

    ORDINARY = "a replica set of three"
    SMALL_OPLOG = "a replica set of one with an oplog of 16 MB"
    SMALL_DISK = "a disk of 16 MB for the tool's own files"


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the table."""

    strike: Callable[[Stage], None]
    ground: Ground = Ground.ORDINARY
    repeats: bool = False
    """Whether even exactly-once repeats changes then: its stored position was moved back, or it reads a collection that
    was renamed as it is, with what was inserted since."""
    refuses: bool = False
    """Whether a tool may wait for an operator then: nobody can know where it stood."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What a tool's makers recommend for such a case, by the tool's title."""


FAULTS: dict[str, Fault] = {
    "none": Fault(no_fault),
    "ten kills": Fault(random_kills),
    "ten kills of a tool that delivers": Fault(kills_at_work),
    "two instances at once": Fault(two_instances),
    "paused beside a second instance": Fault(paused_beside_standby),
    "broker away for half a minute": Fault(broker_away),
    "half-open connections to the broker": Fault(half_open),
    "primary killed": Fault(primary_killed),
    "rollback election": Fault(rollback),
    "collection dropped and renamed": Fault(dropped_and_renamed, repeats=True),
    "record over the topic's limit": Fault(large_record),
    "event over 16 MB": Fault(large_event),
    "invalid UTF-8": Fault(invalid_utf8),
    "disk full": Fault(disk_full, Ground.SMALL_DISK),
    "torn position": Fault(torn_position, refuses=True),
    "restored position": Fault(restored_position, repeats=True),
    "oplog rolled over": Fault(
        rolled_over, Ground.SMALL_OPLOG, settings={"Debezium": {"snapshot.mode": "when_needed"}}
    ),
}
