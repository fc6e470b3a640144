"""Where a contestant's CPU time goes: samples of the stacks of all its threads, taken every so much CPU time.

    python -m bench.profiling engine [--events 100000]
    python -m bench.profiling producer

Prints the functions that took most, and what each takes of an event. For goals that are not met; what was found
is in docs/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from bench import drain_jobs, kafka_jobs
from bench.child import Marks
from bench.workload import load
from tailrace.stand import Kafka, ReplicaSet

_EVERY = 0.001
_THREAD_CLOCK = 6
_DRAINS = {
    "driver": drain_jobs.driver_decoded,
    "batches": drain_jobs.driver_batches,
    "async": drain_jobs.driver_async,
    "engine": drain_jobs.engine,
    "pymongo": drain_jobs.pymongo_watch,
}


class Samples:
    """The CPU time of each function: what its thread used since the sample before is its own."""

    def __init__(self) -> None:
        self.own: defaultdict[str, float] = defaultdict(float)
        self.below: defaultdict[str, float] = defaultdict(float)
        self.taken = 0
        self._used: dict[int, float] = {}

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Sample while the block runs."""
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _take(self, _: int, interrupted: FrameType | None) -> None:
        self.taken += 1
        frames = sys._current_frames()
        for thread in threading.enumerate():
            used = self._since_before(thread.native_id)
            frame = interrupted if thread is threading.main_thread() else frames.get(thread.ident or 0)
            if frame is None or not used:
                continue
            self.own[_name(frame)] += used
            above = set()
            while frame is not None:
                above.add(_name(frame))
                frame = frame.f_back
            for name in above:
                self.below[name] += used

    def _since_before(self, thread: int | None) -> float:
        """CPU that a thread has used since it was asked last; its clock has a number made of its id."""
        if thread is None:
            return 0.0
        try:
            now = time.clock_gettime((~thread << 3) | _THREAD_CLOCK)
        except OSError:
            return 0.0
        before = self._used.get(thread, now)
        self._used[thread] = now
        return now - before

    def show(self, cpu: float, events: int) -> None:
        """Print the busiest functions."""
        seen = sum(self.own.values())
        if not seen:
            print("no sample was taken: more events are needed")
            return
        print(f"{cpu / events * 1e6:.1f} us CPU an event, {self.taken} samples that saw {seen / cpu:.0%} of it\n")
        print(f"{'share':>6} {'us/event':>9} {'with callees':>13}  function")
        for name, used in sorted(self.own.items(), key=lambda one: -one[1])[:18]:
            print(f"{used / seen:6.1%} {used / seen * cpu / events * 1e6:9.2f} {self.below[name] / seen:13.1%}  {name}")


def _name(frame: FrameType) -> str:
    module = frame.f_globals.get("__name__", "?")
    return f"{module}.{frame.f_code.co_qualname}"


def profile(run: Callable[[Marks], Any], events: int) -> None:
    """Run once to warm up, once to sample."""
    samples = Samples()
    with contextlib.redirect_stdout(io.StringIO()):
        run(Marks(events))
        began = time.process_time()
        with samples.taking():
            run(Marks(events))
        cpu = time.process_time() - began
    samples.show(cpu, events)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*_DRAINS, "producer"])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--format", default="json", help="of the producer")
    parser.add_argument("--source", default="change-stream", help="of the producer")
    given = parser.parse_args()
    with contextlib.ExitStack() as running:
        replica_set = running.enter_context(ReplicaSet.start(oplog_mb=2_000))
        client = running.enter_context(replica_set.client())
        start = load(client, given.events)
        place = {"uri": replica_set.uri, "start": [start.time, start.inc], "events": given.events}
        if given.what in _DRAINS:
            job = _DRAINS[given.what]
            profile(lambda marks: job(**place, marks=marks), given.events)
            return
        broker = running.enter_context(Kafka.start())
        options = {"format": given.format, "source": given.source}
        profile(
            lambda marks: kafka_jobs.capture(
                **place, servers=broker.bootstrap_servers, marks=marks, prefix="profile", **options
            ),
            given.events,
        )


if __name__ == "__main__":
    main()
