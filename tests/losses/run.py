"""One cell of the table: a tool, a fault and a seed; what the server's own stream has and the topic has not."""

from __future__ import annotations

import random
import time
import uuid
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bson.raw_bson import RawBSONDocument
from confluent_kafka import Consumer, KafkaException, TopicPartition
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from losses.changes import LENIENT, Change, Count, count, count_documents, decode, of_event
from losses.faults import FAULTS, Ground, Stage
from losses.tools import Aim, RunningTool, Tool
from losses.writer import NumberedWriter
from nemesis.line import Servers
from nemesis.small_disk import mount_small_disk, unmount
from tailrace.stand import ReplicaSet

SECONDS_TO_BEGIN = 240
SECONDS_TO_RECOVER = 180
SECONDS_OF_A_FAILURE = 45
"""A tool that has said that it failed, or ends again and again, is given up after this long."""
EXITS_OF_A_LOOP = 5
SMALL_OPLOG_MB = SMALL_DISK_MB = 16
BEGINNING = "the beginning"
WRITING_BEFORE, WRITING_AFTER = 3.0, 3.0


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one run, as it is kept."""

    fault: str
    tool: str
    seed: int
    server: str
    acknowledged: int
    changes: int
    delivered: int
    lost: int
    duplicated: int
    reordered: int
    invented: int
    dead_lettered: int
    """Changes in a dead-letter topic."""
    seconds_to_recover: float | None
    """From the end of the fault to the last change in the topic; None when it did not come."""
    stopped: str
    """Why the tool waits for an operator; empty when it does not."""
    settings: dict[str, str] = field(default_factory=dict)
    """What it was set to beyond its ordinary settings."""

    def line(self) -> dict[str, Any]:
        """For a file of JSON lines."""
        return asdict(self)


def run(servers: Servers[ReplicaSet], tool: Tool, fault: str, seed: int, folder: Path) -> Cell:
    """Start the tool, write, let the fault happen, write on, and wait until the last change has arrived."""
    row = FAULTS[fault]
    folder.mkdir(parents=True, exist_ok=True)
    name = f"l{uuid.uuid4().hex[:8]}"
    database = f"db{name}"
    more = row.settings.get(tool.title, {})
    with ExitStack() as opened:
        servers = _ground(row.ground, servers, folder, opened)
        aim = Aim(servers.mongodb.uri, servers.broker.proxied_servers, database, name, folder)

        def start_instance() -> RunningTool:
            instance = tool.start(aim, more)
            opened.callback(instance.stop)
            return instance

        running = start_instance()
        topic = f"{name}.{database}.orders"
        topics = opened.enter_context(closing(Topics(servers.broker.bootstrap_servers, name, topic, tool)))
        start = _begin(servers, database, topics)
        writer = NumberedWriter(servers.mongodb.uri, database, seed)
        writer.start()
        time.sleep(WRITING_BEFORE)
        delivering = lambda: _wait_for_more(topics)  # noqa: E731
        row.strike(Stage(servers, running, start_instance, delivering, database, folder, random.Random(seed)))
        time.sleep(WRITING_AFTER)
        writer.stop()
        ending = Ending(running, time.monotonic(), len(running.service.exits))
        last = Change("insert", _mark(servers, database, "the end", writer.number + 1), writer.number + 1)
        if row.ground is Ground.SMALL_OPLOG:
            found, recovered = _by_documents(servers, database, topics, last, ending)
        else:
            truth = _truth(servers.mongodb.uri, database, start, last.key)
            recovered = _wait_for(topics, last, ending)
            topics.poll(5.0)
            found = count(truth, topics.changes)
        return Cell(
            fault=fault,
            tool=tool.title,
            seed=seed,
            server=servers.mongodb.version,
            acknowledged=writer.acknowledged,
            dead_lettered=topics.dead_letters(),
            seconds_to_recover=None if recovered is None else round(recovered, 1),
            stopped="" if recovered is not None else ending.reason()[:200],
            settings=dict(more),
            **asdict(found),
        )


def _ground(ground: Ground, servers: Servers[ReplicaSet], folder: Path, opened: ExitStack) -> Servers[ReplicaSet]:
    """Prepare what the fault needs; gives the servers of the run."""
    if ground is Ground.SMALL_DISK:
        assert mount_small_disk(folder, SMALL_DISK_MB), "a small disk needs root"
        opened.callback(unmount, folder)
    elif ground is Ground.SMALL_OPLOG:
        small = ReplicaSet.start(oplog_mb=SMALL_OPLOG_MB, folder=folder / "mongodb")
        return replace(servers, mongodb=opened.enter_context(small))
    return servers


@dataclass(frozen=True, slots=True)
class Ending:
    """A tool after the fault: whether it is worth while to wait for it."""

    tool: RunningTool
    healed: float
    exits: int
    """How often it had ended by then."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be expected."""
        waited = time.monotonic() - self.healed
        loops = len(self.tool.service.exits) - self.exits >= EXITS_OF_A_LOOP
        return waited > SECONDS_TO_RECOVER or (waited > SECONDS_OF_A_FAILURE and (loops or bool(self.tool.failed())))

    def reason(self) -> str:
        """Why it delivers nothing, in its own words where it has some."""
        if reason := self.tool.failed():
            return reason
        if len(self.tool.service.exits) - self.exits >= EXITS_OF_A_LOOP:
            lines = [line for line in self.tool.service.log_tail().splitlines() if line.strip()]
            return f"ends again and again: {lines[-1] if lines else 'without a word'}"
        return f"delivers nothing for {SECONDS_TO_RECOVER} s"


class Topics:
    """What a tool has written: its topic of the collection, and its dead letters."""

    def __init__(self, servers: str, name: str, topic: str, tool: Tool) -> None:
        self._name, self._topic, self._tool = name, topic, tool
        options = {"group.id": name, "isolation.level": "read_committed", "enable.auto.commit": False, "log_level": 0}
        self._consumer = Consumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest", **options})
        self._assigned = False
        self.has_begun = False
        self.changes: list[Change] = []

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()

    def poll(self, seconds: float) -> None:
        """Read what has come since."""
        if not self._assigned and not self._assign():
            return
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            messages = self._consumer.consume(5_000, timeout=min(1.0, seconds))
            if not messages:
                return
            for message in messages:
                if not message.error() and message.value() is not None:
                    change = self._tool.read(message.key(), message.value())
                    if change and change.key.startswith(BEGINNING):
                        self.has_begun = True
                    elif change:
                        self.changes.append(change)

    def dead_letters(self) -> int:
        """How many changes the topics for dead letters hold; a large one is there in parts, which say so."""
        topics = self._consumer.list_topics(timeout=10).topics
        named = [name for name in topics if self._name in name and "dead" in name]
        places = [TopicPartition(name, part, 0) for name in named for part in topics[name].partitions]
        if not places:
            return 0
        left = sum(self._consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
        self._consumer.assign(places)
        letters = 0
        while left and (messages := self._consumer.consume(left, timeout=10)):
            parts = [dict(message.headers() or ()).get("part", b"1/1") for message in messages]
            letters += sum(part.startswith(b"1/") for part in parts)
            left -= len(messages)
        return letters

    def _assign(self) -> bool:
        try:
            topic = self._consumer.list_topics(self._topic, timeout=5).topics[self._topic]
        except KafkaException:
            return False
        if topic.error or not topic.partitions:
            return False
        self._consumer.assign([TopicPartition(self._topic, part, 0) for part in topic.partitions])
        self._assigned = True
        return True


def _begin(servers: Servers[ReplicaSet], database: str, topics: Topics) -> Any:
    """Write until the tool delivers; gives the operation time from which on everything counts."""
    deadline = time.monotonic() + SECONDS_TO_BEGIN
    while not topics.has_begun:
        assert time.monotonic() < deadline, "the tool never began"
        key = _mark(servers, database, BEGINNING, None)
        topics.poll(1.0)
    with servers.mongodb.client() as client, client.start_session() as session:
        client[database].orders.find_one({"_id": key}, session=session)
        return session.operation_time


def _mark(servers: Servers[ReplicaSet], database: str, name: str, number: int | None) -> str:
    key = f"{name} {time.time_ns()}"
    deadline = time.monotonic() + SECONDS_TO_BEGIN
    while True:
        try:
            with servers.mongodb.client(w="majority") as client:
                document = {"write": number if number is not None else key}
                client[database].orders.update_one({"_id": key}, {"$setOnInsert": document}, upsert=True)
            return key
        except PyMongoError:
            assert time.monotonic() < deadline, "MongoDB takes no writes"
            time.sleep(0.5)


def _truth(uri: str, database: str, start: Any, last: str) -> list[Change]:
    """The server's own stream of the collection's name, read by pymongo, cut into fragments where it has to be.

    Documents that a rename brings count as inserted: whoever follows the name has them from then on.
    """
    found: list[Change] = []
    elsewhere: list[Change] = []
    deadline = time.monotonic() + SECONDS_TO_BEGIN
    options = {"start_at_operation_time": start, "max_await_time_ms": 200, "batch_size": 1_000}
    # An event over 16 MB cannot be read: what the numbers need is kept, the filler is not.
    short = [{"$project": {"fullDocument.filler": 0, "updateDescription.updatedFields.filler": 0}}]
    with MongoClient[Any](uri, document_class=RawBSONDocument, serverSelectionTimeoutMS=30_000) as client:
        target = client.get_database(database, codec_options=LENIENT.with_options(document_class=RawBSONDocument))
        with target.watch(short, **options) as stream:
            while time.monotonic() < deadline:
                raw = stream.try_next()
                if raw is None:
                    continue
                event = decode(raw.raw)
                change = of_event(event)
                if event["operationType"] == "rename":
                    found += elsewhere
                elif change and event["ns"]["coll"] != "orders":
                    elsewhere.append(change)
                elif change and not change.key.startswith(BEGINNING):
                    found.append(change)
                    if change.key == last:
                        return found
    raise AssertionError("the server's own stream did not come to the end")


def _wait_for(topics: Topics, last: Change, ending: Ending) -> float | None:
    """Wait for the last change; gives how long that took after the fault."""
    looked_at = 0
    while not ending.is_over:
        topics.poll(1.0)
        if any(change.key == last.key for change in topics.changes[looked_at:]):
            return time.monotonic() - ending.healed
        looked_at = len(topics.changes)
    return None


def _wait_for_more(topics: Topics) -> None:
    before, deadline = len(topics.changes), time.monotonic() + SECONDS_TO_RECOVER
    while len(topics.changes) == before and time.monotonic() < deadline:
        topics.poll(0.5)


def _by_documents(
    servers: Servers[ReplicaSet], database: str, topics: Topics, last: Change, ending: Ending
) -> tuple[Count, float | None]:
    """Compare documents until they agree, or nothing more is to be expected."""
    recovered = _wait_for(topics, last, ending)
    with servers.mongodb.client() as client:
        documents = client[database].orders.find({"_id": {"$not": {"$regex": f"^{BEGINNING}"}}}, {"write": 1})
        truth = {each["_id"]: each.get("write") for each in documents}
    deadline = time.monotonic() + SECONDS_OF_A_FAILURE
    while (found := count_documents(truth, topics.changes)).lost and time.monotonic() < deadline:
        topics.poll(1.0)
        recovered = None if recovered is None else time.monotonic() - ending.healed
    return found, recovered
