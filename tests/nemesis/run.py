"""One run: begin to write, let the faults of a seed happen, heal, wait until everybody is healthy, compare."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pymongo.errors import PyMongoError

from nemesis.deployments import Deployment
from nemesis.faults import AlreadyStruck, Faults
from nemesis.jobs import JobsWriter
from nemesis.line import Line, Servers
from nemesis.schedule import Strike, draw
from nemesis.validators import Event, TopicReader, Verdict, compare, unacknowledged_losses
from nemesis.watchers import Watcher
from nemesis.writers import COLLECTIONS, Writer
from tailrace.errors import StandError
from tailrace.owned import OwnedThread

SECONDS_TO_BEGIN = 120
SECONDS_TO_HEAL = 240
SECONDS_FOR_JOBS = 600
"""A driver that starts anew needs a minute on a machine with other work, and its first batch another one."""


@dataclass
class Report:
    """What a run did and found, as it is printed and kept."""

    seed: int
    line: str
    version: str
    seconds: float
    timeline: list[str] = field(default_factory=list)
    acknowledged: int = 0
    unknown: int = 0
    rolled_back: int = 0
    events: int = 0
    healthy_after: dict[str, float] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    exits: dict[str, list[int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Seed, timeline and figures, for a person."""
        lines = [
            f"seed {self.seed}, {self.line}, MongoDB {self.version}, {self.seconds:.0f} s of faults",
            *self.timeline,
        ]
        lines.append(
            f"acknowledged {self.acknowledged}, unknown {self.unknown}, rolled back {self.rolled_back}, "
            f"events {self.events}"
        )
        lines += [
            f"{verdict.reader}: delivered {verdict.delivered}, lost {len(verdict.lost)}, "
            f"duplicated {verdict.duplicated}, reordered {len(verdict.reordered)}, "
            f"invented {len(verdict.invented)}, healthy after {self.healthy_after.get(verdict.reader, 0):.1f} s"
            for verdict in self.verdicts
        ]
        if "jobs" in self.healthy_after:
            lines.append(f"features, mirrors and histories equal after {self.healthy_after['jobs']:.1f} s more")
        lines += [f"{name} ended with {codes}" for name, codes in self.exits.items() if codes]
        return "\n".join([*lines, *self.problems])

    def save(self, path: Path) -> None:
        """Append it to a file of JSON lines."""
        figures = {key: value for key, value in asdict(self).items() if key not in ("verdicts",)}
        figures["readers"] = {
            verdict.reader: {
                "delivered": verdict.delivered,
                "lost": len(verdict.lost),
                "duplicated": verdict.duplicated,
                "reordered": len(verdict.reordered),
                "invented": len(verdict.invented),
            }
            for verdict in self.verdicts
        }
        with path.open("a") as file:
            file.write(json.dumps(figures) + "\n")


class Run:
    """The parts of one run; `whole` does it from beginning to end."""

    def __init__(
        self,
        servers: Servers[Deployment],
        folder: Path,
        seed: int,
        seconds: float,
        pause: float = 0.01,
        *,
        with_jobs: bool = False,
    ) -> None:
        self._servers = servers
        self._seed = seed
        self._seconds = seconds
        self._pause = pause
        self._line = Line(servers, folder, seed, with_jobs=with_jobs)
        self._faults = Faults(self._line)
        self._began = 0.0
        name = f"{servers.mongodb.name}, with Spark jobs" if with_jobs else servers.mongodb.name
        self.report = Report(seed, name, servers.mongodb.version, seconds)

    def whole(self) -> Report:
        """Do it; what went wrong is in the report's `problems`."""
        self._servers.mongodb.prepare(self._line.database)
        with self._line, ExitStack() as stack:
            readers = {
                stream.name: TopicReader(self._servers.broker.bootstrap_servers, stream.name, stream.format)
                for stream in self._line.streams
            }
            for reader in readers.values():
                stack.callback(reader.close)
            start = self._begin(readers)
            watchers = [
                Watcher(self._line.gateway_uri, self._line.database, collection, start)
                for collection in (None, COLLECTIONS[0])
            ]
            writers = self._servers.mongodb.writers(self._line.database, self._seed, self._pause)
            others = [JobsWriter(self._servers.mongodb.uri, self._line.database, self._seed)] if self._line.jobs else []
            for each in (*watchers, *writers, *others):
                each.start()
            self._strike(draw(self._seed, self._faults.names, self._seconds))
            for writer in (*writers, *others):
                writer.stop()
            last = self._mark("the end")
            truth = self._servers.mongodb.truth(self._line.database, start, last)
            self._wait_healthy(readers, watchers, last, truth)
            self._wait_for_jobs(truth)
            for watcher in watchers:
                watcher.stop()
            self._judge(readers, watchers, writers, truth, (start.time, start.inc))
        return self.report

    def _begin(self, readers: dict[str, TopicReader]) -> Any:
        """Wait until every producer delivers; gives the operation time from which on everything counts."""
        key = self._mark("the beginning")
        deadline = time.monotonic() + SECONDS_TO_BEGIN
        waiting = set(readers)
        while waiting:
            assert time.monotonic() < deadline, f"these never began: {sorted(waiting)}\n{self._logs()}"
            for name in sorted(waiting):
                readers[name].poll()
                if any(event.name == "the beginning" for event in readers[name].events):
                    waiting.discard(name)
            key = self._mark("the beginning")
        jobs, deadline = self._line.jobs, time.monotonic() + SECONDS_FOR_JOBS
        while jobs and not jobs.have_begun():
            assert time.monotonic() < deadline, f"the jobs never began\n{self._logs()}"
            key = self._mark("the beginning")
            time.sleep(1)
        return self._servers.mongodb.time_after(self._line.database, key)

    def _mark(self, name: str) -> str:
        """Insert a document that says where a stretch begins or ends; gives its `_id`."""
        deadline = time.monotonic() + SECONDS_TO_HEAL
        while True:
            try:
                return self._servers.mongodb.mark(self._line.database, name)
            except (PyMongoError, StandError):
                assert time.monotonic() < deadline, "MongoDB does not take writes any more"
                time.sleep(0.2)

    def _strike(self, strikes: list[Strike]) -> None:
        """Let each fault happen at its time, several at once, and all be undone at the end."""
        self._began = time.monotonic()
        threads = []
        for number, strike in enumerate(strikes):
            time.sleep(max(0.0, self._began + strike.at - time.monotonic()))
            thread = OwnedThread(lambda strike=strike: self._one(strike), name=f"fault {number}")
            thread.start()
            threads.append(thread)
        time.sleep(max(0.0, self._began + self._seconds - time.monotonic()))
        for thread in threads:
            assert thread.join(SECONDS_TO_HEAL), f"{thread.name} could not be undone"
            if thread.error:
                self.report.problems.append(f"{thread.name} of the nemesis itself failed: {str(thread.error)[:300]}")
        self.report.rolled_back = self._faults.rolled_back

    def _one(self, strike: Strike) -> None:
        try:
            with self._faults.strike(strike.fault, strike.choice) as victim:
                self._note(f"{strike.fault} ({victim}) for {strike.seconds:.1f} s")
                time.sleep(strike.seconds)
        except AlreadyStruck as error:
            self._note(f"{strike.fault}: left out, {error} is struck already")

    def _note(self, what: str) -> None:
        self.report.timeline.append(f"{time.monotonic() - self._began:6.1f} s  {what}")

    def _wait_healthy(
        self, readers: dict[str, TopicReader], watchers: list[Watcher], last: Any, truth: list[Event]
    ) -> None:
        """Wait until each reader has the last event, and note how long that took after the last fault."""
        healed = time.monotonic()
        for reader in readers.values():
            reader.reconnect()
        waiting: dict[str, Callable[[], bool]] = {
            name: lambda reader=reader: reader.poll(0.5) or reader.has(last) for name, reader in readers.items()
        }
        for watcher in watchers:
            token = truth[-1].token
            waiting[watcher.name] = lambda watcher=watcher, token=token: any(
                event.token == token for event in reversed(watcher.events)
            )
        while waiting:
            if time.monotonic() > healed + SECONDS_TO_HEAL:
                self.report.problems += [f"{name} is not healthy after {SECONDS_TO_HEAL} s" for name in waiting]
                self.report.problems.append(self._logs())
                return
            for name in [name for name, arrived in waiting.items() if arrived()]:
                self.report.healthy_after[name] = time.monotonic() - healed
                del waiting[name]

    def _wait_for_jobs(self, truth: list[Event]) -> None:
        """Wait until features, mirrors and histories are what MongoDB says, and note how long that took."""
        jobs, began = self._line.jobs, time.monotonic()
        if jobs is None:
            return
        while problems := jobs.problems(self._servers.mongodb.uri, truth, COLLECTIONS):
            if time.monotonic() > began + SECONDS_FOR_JOBS:
                self.report.problems += problems
                return
            time.sleep(2)
        self.report.healthy_after["jobs"] = time.monotonic() - began

    def _judge(
        self,
        readers: dict[str, TopicReader],
        watchers: list[Watcher],
        writers: list[Writer],
        truth: list[Event],
        start: tuple[int, int],
    ) -> None:
        report = self.report
        truth = [event for event in truth if event.time > start]
        acknowledged = set().union(*(writer.journal.acknowledged for writer in writers))
        report.acknowledged = len(acknowledged)
        report.unknown = sum(len(writer.journal.unknown) for writer in writers)
        report.events = len(truth)
        report.exits = {service.name: service.exits for service in self._line.services}
        missing = unacknowledged_losses(acknowledged, truth)
        if missing:
            report.problems.append(f"the server itself has lost {len(missing)} acknowledged writes: {missing[:3]}")
        for stream in self._line.streams:
            readers[stream.name].poll(2.0)
            verdict = compare(stream.name, readers[stream.name].events, truth, start)
            report.verdicts.append(verdict)
            report.problems += verdict.problems(duplicates_allowed=stream.delivery == "at-least-once")
        for watcher in watchers:
            wanted = [event for event in truth if watcher.collection in (None, event.namespace.partition(".")[2])]
            verdict = compare(watcher.name, watcher.events, wanted, start)
            report.verdicts.append(verdict)
            report.problems += verdict.problems(duplicates_allowed=False)
        if report.problems:
            report.problems.append(self._logs())

    def _logs(self) -> str:
        return "\n".join(
            f"--- {service.name}, exits {service.exits}\n{service.log_tail()}" for service in self._line.services
        )
