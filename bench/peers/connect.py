"""Kafka Connect in standalone mode as a contestant: one worker, a new connector with new topics for every run.

The worker stays up between the runs, so that its JVM is warm. Connectors are made and removed by its REST
interface; what has arrived is told by the end offsets of the topic.
"""

from __future__ import annotations

import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.accounting import Meter, forget_peak, peak_mb, tree_of
from bench.contestant import Contestant, ContestantFailed, file_name
from bench.peers import HEAP, Peer, java
from tailrace.stand.ports import reserve_port
from tailrace.stand.process import ServerProcess

_SECONDS_BETWEEN_LOOKS = 0.01
_SECONDS_TO_START = 240.0
_PARTITIONS = 3


class ConnectWorker:
    """A worker that several contestants use, one after the other."""

    def __init__(self, peer: Peer, servers: str, converter: Mapping[str, str], folder: Path) -> None:
        self._port = reserve_port()
        self._folder = folder
        self.converter = dict(converter)
        config = folder / f"{peer.name}-worker.properties"
        properties = {
            "bootstrap.servers": servers,
            "listeners": f"http://127.0.0.1:{self._port.number}",
            "offset.storage.file.filename": folder / f"{peer.name}-offsets",
            "plugin.discovery": "only_scan",
            **converter,
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        self._process = ServerProcess(
            f"Kafka Connect with {peer.title}",
            [java(), HEAP, quiet, "-cp", peer.class_path(), main, str(config)],
            log=folder / f"{peer.name}-worker.log",
            folder=folder,
        )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def launch(self) -> None:
        """Start the worker; nothing happens when it runs."""
        if not self._process.alive:
            self._process.launch()

    def wait_ready(self) -> None:
        """Wait until it takes orders."""
        self._process.wait_until(self._answers, timeout=_SECONDS_TO_START)

    def _answers(self) -> bool:
        """Whether it takes orders; until its resources are there it says that there is no such page."""
        try:
            return self.ask("GET", "/connectors") is not None
        except ContestantFailed:
            return False

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask its REST interface; None when it does not answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port.number}{path}",
            data=data,
            method=method,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"true")
        except urllib.error.HTTPError as error:
            raise ContestantFailed(f"Kafka Connect says {error.read().decode()[:500]}") from None
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._port.release()


class Connector(Contestant):
    """A source connector, from a time on."""

    _numbers = itertools.count()

    def __init__(
        self, name: str, worker: ConnectWorker, servers: str, settings: Mapping[str, str], events: int, **options: Any
    ) -> None:
        super().__init__(name, peer=True, warm_ups=1, settings={**settings, **worker.converter}, **options)
        self._worker = worker
        self._servers = servers
        self._config = dict(settings)
        self._events = events

    def launch(self, folder: Path) -> None:
        """Start the worker if nobody did."""
        self._worker.launch()

    def wait_ready(self) -> None:
        """Wait for the worker."""
        self._worker.wait_ready()

    def begin(self) -> tuple[str, str]:
        """Make the connector; gives its name and its topic."""
        name = f"{file_name(self.name).lower()}-{next(self._numbers)}"
        config = {
            **self._config,
            "name": name,
            "topic.prefix": name,
            "tasks.max": "1",
            "topic.creation.default.partitions": str(_PARTITIONS),
            "topic.creation.default.replication.factor": "1",
        }
        self._worker.ask("POST", "/connectors", {"name": name, "config": config})
        return name, f"{name}.bench.orders"

    def end(self, name: str) -> None:
        """Remove the connector."""
        self._worker.ask("DELETE", f"/connectors/{name}")

    def run(self, meter: Meter) -> dict[str, float]:
        """Let it read all events, and measure from the time a third of them is in the topic."""
        pids = tree_of(self._worker.pid)
        forget_peak(pids)
        name, topic = self.begin()
        try:
            warm = self._reached(topic, self._events // 3, name)
            first = meter.look(self._worker.pid)
            done = self._reached(topic, self._events, name)
            last = meter.look(self._worker.pid)
        finally:
            self.end(name)
        if done <= warm:
            raise ContestantFailed("everything came at once; it needs more events to be measured")
        return {**meter.between(first, last, done - warm), "peak_mb": peak_mb(pids)}

    def _reached(self, topic: str, count: int, name: str) -> int:
        deadline = time.monotonic() + self.seconds
        with offsets_of(self._servers) as offsets:
            while (seen := offsets.end_of(topic)) < count:
                if time.monotonic() > deadline:
                    state = self._worker.ask("GET", f"/connectors/{name}/status")
                    raise ContestantFailed(f"{seen} of {count} events came in time; {json.dumps(state)[:800]}")
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        return seen

    def close(self) -> None:
        """The worker is closed by who made it."""


class offsets_of:
    """Asks a broker how many records topics hold."""

    def __init__(self, servers: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench-offsets", "log_level": 2})

    def __enter__(self) -> offsets_of:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def end_of(self, topic: str) -> int:
        """The sum of the end offsets; 0 while there is no topic."""
        try:
            known = self._consumer.list_topics(topic, timeout=10).topics[topic]
            if known.error or not known.partitions:
                return 0
            places = [TopicPartition(topic, number) for number in known.partitions]
            return sum(self._consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
        except KafkaException:
            return 0
