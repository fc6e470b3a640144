"""The faults: each begins, lasts, and is undone; a victim that is struck already is left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from nemesis.jobs import Jobs, is_jvm, is_worker, kill_below
from nemesis.line import Line
from nemesis.small_disk import filled
from tailrace.errors import ServerDidNotStart
from tailrace.stand import ReplicaSet

_TIMES_TO_RESTART = 4


class AlreadyStruck(Exception):
    """The victim suffers from another fault at this moment."""


class Faults:
    """All faults of a line, by name; each is a context: it begins on entry and is undone on exit."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._struck: set[str] = set()
        self._lock = threading.Lock()
        self.rolled_back = 0
        """Writes that only a primary without its secondaries had."""
        self._menu: dict[str, Callable[[int], Any]] = {
            "kill a producer": lambda choice: self._killed(self._service(line.producers, choice)),
            "stop a producer": lambda choice: self._stopped(self._service(line.producers, choice)),
            "kill all producers": lambda _: self._all_killed(),
            "kill the gateway": lambda _: self._killed(line.gateway),
            "stop the gateway": lambda _: self._stopped(line.gateway),
            "kill a mongod": self._node_killed,
            "kill the primary": self._primary_killed,
            "stop the primary": self._primary_stopped,
            "step down": self._stepped_down,
            "roll back": self._cut_off_primary,
            "kill the broker": lambda _: self._server_killed(line.broker, "broker"),
            "stop the broker": lambda _: self._server_stopped(line.broker, "broker"),
            "cut the broker's network": lambda _: self._network(lambda proxy: proxy.cut(), repeat=True),
            "half-open connections to the broker": lambda _: self._network(lambda proxy: proxy.black_hole()),
            "a slow network to the broker": lambda _: self._network(lambda proxy: proxy.throttle(20_000)),
            "a late network to the broker": lambda _: self._network(lambda proxy: proxy.delay(0.3)),
            "kill Redis": lambda _: self._server_killed(line.redis, "redis"),
            "kill PostgreSQL": lambda _: self._server_killed(line.postgres, "postgres"),
        }
        if line.has_small_disk:
            self._menu["a full disk"] = lambda _: self._disk_full()
        if line.jobs is not None:
            self._menu |= self._faults_of_jobs(line.jobs)

    @property
    def names(self) -> list[str]:
        """The menu."""
        return list(self._menu)

    def strike(self, name: str, choice: int) -> Any:
        """The context of one fault."""
        return self._menu[name](choice)

    @contextmanager
    def _alone(self, victim: str) -> Iterator[None]:
        with self._lock:
            if victim in self._struck:
                raise AlreadyStruck(victim)
            self._struck.add(victim)
        try:
            yield
        finally:
            with self._lock:
                self._struck.discard(victim)

    def _service(self, services: list[Any], choice: int) -> Any:
        return services[choice % len(services)]

    def _faults_of_jobs(self, jobs: Jobs) -> dict[str, Callable[[int], Any]]:
        return {
            "kill a Spark driver": lambda choice: self._killed(self._service(jobs.services, choice)),
            "stop a Spark driver": lambda choice: self._stopped(self._service(jobs.services, choice)),
            "kill a Spark worker": lambda choice: self._killed_below(
                self._service(jobs.services, choice), choice, is_worker
            ),
            "kill a JVM": lambda choice: self._killed_below(self._service(jobs.services, choice), choice, is_jvm),
        }

    @contextmanager
    def _killed_below(self, service: Any, choice: int, wanted: Callable[[str], bool]) -> Iterator[str]:
        yield kill_below(service, choice, wanted)

    @contextmanager
    def _disk_full(self) -> Iterator[str]:
        """Fill the disk that the processes have for their positions and logs."""
        with self._alone("disk"), filled(self._line.disk) as size:
            yield f"{size} bytes"

    @contextmanager
    def _killed(self, service: Any) -> Iterator[str]:
        service.kill()
        yield service.name

    @contextmanager
    def _all_killed(self) -> Iterator[str]:
        for service in self._line.producers:
            service.kill()
        yield "all"

    @contextmanager
    def _stopped(self, service: Any) -> Iterator[str]:
        with self._alone(service.name):
            service.pause()
            try:
                yield service.name
            finally:
                service.resume()

    @contextmanager
    def _server_killed(self, server: Any, victim: str) -> Iterator[str]:
        with self._alone(victim):
            server.kill()
            try:
                yield server.address
            finally:
                _restart(server)

    @contextmanager
    def _server_stopped(self, server: Any, victim: str) -> Iterator[str]:
        with self._alone(victim):
            server.pause()
            try:
                yield server.address
            finally:
                server.resume()

    def _replica_set(self, choice: int) -> ReplicaSet:
        sets = self._line.mongodb.replica_sets
        return sets[choice % len(sets)]

    def _node_killed(self, choice: int) -> Any:
        replica_set = self._replica_set(choice)
        return self._server_killed(replica_set.nodes[choice % len(replica_set.nodes)], replica_set.name)

    def _primary_killed(self, choice: int) -> Any:
        replica_set = self._replica_set(choice)
        return self._server_killed(replica_set.primary, replica_set.name)

    def _primary_stopped(self, choice: int) -> Any:
        replica_set = self._replica_set(choice)
        return self._server_stopped(replica_set.primary, replica_set.name)

    @contextmanager
    def _stepped_down(self, choice: int) -> Iterator[str]:
        replica_set = self._replica_set(choice)
        with self._alone(replica_set.name):
            primary = replica_set.primary
            replica_set.step_down(5)
            yield primary.address

    @contextmanager
    def _cut_off_primary(self, choice: int) -> Iterator[str]:
        """Writes with w: 1 on a primary that nobody hears: the others elect another one, and these are rolled back.

        The others are killed, not stopped: what was sent to one that is only stopped is there when it goes on.
        """
        replica_set = self._replica_set(choice)
        with self._alone(replica_set.name):
            old = replica_set.primary
            others = [node for node in replica_set.nodes if node is not old]
            for node in others:
                node.kill()
            try:
                self.rolled_back += self._write_alone(old, choice)
                old.pause()
            finally:
                for node in others:
                    _restart(node)
            try:
                yield old.address
            finally:
                old.resume()

    def _write_alone(self, node: Any, choice: int) -> int:
        options: dict[str, Any] = {"directConnection": True, "w": 1, "serverSelectionTimeoutMS": 1_000}
        written = 0
        with MongoClient[dict[str, Any]](node.uri, socketTimeoutMS=2_000, **options) as client:
            try:
                for number in range(20):
                    document = {"_id": f"taken back {choice} {time.time_ns()} {number}", "op": "taken back"}
                    client[self._line.database].orders.insert_one(document)
                    written += 1
            except PyMongoError:
                pass
        return written

    @contextmanager
    def _network(self, spoil: Callable[[Any], None], *, repeat: bool = False) -> Iterator[str]:
        with self._alone("network"):
            proxy = self._line.proxy
            spoil(proxy)
            if repeat:
                time.sleep(0.2)
                spoil(proxy)
            try:
                yield proxy.address
            finally:
                proxy.heal()


def _restart(server: Any) -> None:
    """Start a killed server; on a busy machine a broker needs more than the minute it is given."""
    for tries_left in reversed(range(_TIMES_TO_RESTART)):
        try:
            server.restart()
            return
        except ServerDidNotStart:
            if not tries_left:
                raise
