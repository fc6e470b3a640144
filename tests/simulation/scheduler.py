"""Virtual time, and tasks of which one runs at a time: every interleaving is chosen by a list of numbers.

A task is a thread that holds the baton from one `point` to the next. At each point the scheduler picks who goes on, or
moves the clock when nobody can. All chance comes from `Choices`, so a seed is a run, and so is the list of what was
chosen; a shorter list, with 0 where it ends, is a simpler run: 0 always means that nothing special happens.
"""

from __future__ import annotations

import queue
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tailrace.owned import OwnedThread

MOST_STEPS = 60_000


class Killed(BaseException):
    """The process of this task was killed: nothing that it still does has an effect."""


class Stuck(Exception):
    """The simulation takes more steps than any sensible run."""


class Choices:
    """Numbers drawn from a seed, or replayed."""

    def __init__(self, seed: int, replayed: Sequence[int] | None = None) -> None:
        self._random = random.Random(seed)
        self._replayed = None if replayed is None else deque(replayed)
        self.made: list[int] = []

    def below(self, limit: int) -> int:
        """Give a number from 0 up to, but not including, a limit."""
        if self._replayed is None:
            value = self._random.randrange(limit)
        else:
            value = min(self._replayed.popleft() if self._replayed else 0, limit - 1)
        self.made.append(value)
        return value

    def happens(self, one_in: int) -> bool:
        """Whether something rare happens now."""
        if one_in <= 1:
            return one_in == 1
        return self.below(one_in) == one_in - 1


class Process:
    """What dies and sleeps as one."""

    def __init__(self, name: str, *, wall_offset: float = 0.0) -> None:
        self.name = name
        self.wall_offset = wall_offset
        self.is_dead = False
        self.sleeps_until = 0.0


def _taken_lock() -> threading.Lock:
    """Give a lock that one thread takes again when another has released it: the quickest way to hand over."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Task:
    """A thread that runs only when it is its turn; made by `Scheduler.start`. Looks like an `OwnedThread`."""

    def __init__(self, scheduler: Scheduler, process: Process, name: str, run: Callable[[], object]) -> None:
        self.process = process
        self.name = name
        self.error: BaseException | None = None
        self.is_done = False
        self.wakes_at: float | None = 0.0
        self.is_ready: Callable[[], bool] | None = None
        self._scheduler = scheduler
        self._run = run
        self._turn = _taken_lock()
        self._thread = OwnedThread(self._live, name=name)

    @property
    def is_alive(self) -> bool:
        return not self.is_done

    def start(self) -> None:
        self._scheduler.tasks.append(self)
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        self._scheduler.wait(lambda: self.is_done, timeout)
        return self.is_done

    def may_run(self, now: float) -> bool:
        if self.is_done or self.process.sleeps_until > now:
            return False
        if self.process.is_dead or (self.wakes_at is not None and self.wakes_at <= now):
            return True
        return self.is_ready is not None and self.is_ready()

    def take_turn(self) -> None:
        self._turn.release()
        self._scheduler.baton.acquire()

    def hand_over(self) -> None:
        self._scheduler.baton.release()
        self._turn.acquire()
        self.check_life()

    def check_life(self) -> None:
        if self.process.is_dead:
            raise Killed

    def _live(self) -> None:
        self._turn.acquire()
        try:
            self.check_life()
            self._run()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.is_done = True
            self._scheduler.baton.release()


class Scheduler:
    """Runs tasks one at a time, on a clock of its own."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.now = 1_000.0
        self.tasks: list[Task] = []
        self.baton = _taken_lock()
        self.running: Task | None = None
        self.steps = 0
        self.trace: list[str] = []

    def start(self, process: Process, name: str, run: Callable[[], object]) -> Task:
        """Let a task of a process run from now on."""
        task = Task(self, process, name, run)
        task.start()
        return task

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        who = self.running.name if self.running else "world"
        self.trace.append(f"{self.now - 1_000:9.3f} {who:16} {what}")

    @property
    def process(self) -> Process:
        """The process whose task runs."""
        assert self.running is not None
        return self.running.process

    def point(self) -> None:
        """Let others run first, if it so happens; a killed process ends here."""
        self.wait(None, 0.0)

    def wait(self, is_ready: Callable[[], bool] | None, timeout: float | None) -> None:
        """Stop until something is so, or the time is over."""
        task = self.running
        assert task is not None
        task.check_life()
        task.is_ready = is_ready
        task.wakes_at = None if timeout is None else self.now + timeout
        task.hand_over()

    def run(self, until: Callable[[], bool]) -> None:
        """Go on until something is so, or everything has ended."""
        while not until():
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise Stuck(f"{self.steps} steps")
            able = [task for task in self.tasks if task.may_run(self.now)]
            if able:
                self._give_turn(able[self.choices.below(len(able))] if len(able) > 1 else able[0])
                continue
            times = [max(task.wakes_at, task.process.sleeps_until) for task in self.tasks
                     if not task.is_done and task.wakes_at is not None]  # fmt: skip
            times += [task.process.sleeps_until for task in self.tasks
                      if not task.is_done and task.process.sleeps_until > self.now]  # fmt: skip
            if not times:
                return
            self.now = max(self.now + 1e-6, min(times))

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL does: at the point where each of its tasks is."""
        process.is_dead = True
        process.sleeps_until = 0.0

    def end(self) -> None:
        """End everything that still runs."""
        for task in self.tasks:
            self.kill(task.process)
        while any(not task.is_done for task in self.tasks):
            self._give_turn(next(task for task in self.tasks if not task.is_done))

    def _give_turn(self, task: Task) -> None:
        self.running = task
        task.take_turn()
        self.running = None
        if task.is_done:
            self.tasks.remove(task)


class Substitutes:
    """What stands in for `time`, `threading`, queues and threads in the modules that are simulated."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.time = SimpleNamespace(
            monotonic=lambda: scheduler.now,
            time=self.wall_clock,
            time_ns=lambda: round(self.wall_clock() * 1e9),
            sleep=lambda seconds: scheduler.wait(None, seconds),
        )
        self.threading = SimpleNamespace(Event=self.event, Condition=self.condition, Lock=_NoLock,
                                         RLock=lambda: _Turn(scheduler))  # fmt: skip

    def wall_clock(self) -> float:
        """What the clock of the machine shows, right or wrong."""
        running = self._scheduler.running
        return 1.7e9 + self._scheduler.now + (running.process.wall_offset if running else 0.0)

    def event(self) -> _Event:
        return _Event(self._scheduler)

    def condition(self) -> _Condition:
        return _Condition(self._scheduler)

    def queue(self, limit: int = 0) -> _Queue:
        return _Queue(self._scheduler, limit)

    def thread(self, run: Callable[[], object], *, name: str, on_death: Callable[[BaseException], Any] = print) -> Task:
        def live() -> None:
            try:
                run()
            except Exception as error:
                on_death(error)

        scheduler = self._scheduler
        return Task(scheduler, scheduler.process, f"{scheduler.process.name}:{name.removeprefix('tailrace-')}", live)


class _NoLock:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class _Turn:
    """A lock that a task holds from one point to another."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holder: Task | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = self._scheduler.running
        while self._holder is not me and self._holder is not None and not self._holder.is_done:
            self._scheduler.wait(lambda: self._holder is None or self._holder.is_done, None)
        if self._holder is not me:
            self._depth = 0
        self._holder = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None


class _Event:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._scheduler.wait(self.is_set, timeout)
        return self._is_set


class _Condition(_NoLock):
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._changes = 0

    def wait(self, timeout: float | None = None) -> None:
        seen = self._changes
        self._scheduler.wait(lambda: self._changes != seen, timeout)

    def notify_all(self) -> None:
        self._changes += 1


class _Queue:
    def __init__(self, scheduler: Scheduler, limit: int) -> None:
        self._scheduler = scheduler
        self._limit = limit
        self._items: deque[Any] = deque()

    def put(self, item: Any, timeout: float | None = None) -> None:
        if self._limit and len(self._items) >= self._limit:
            self._scheduler.wait(lambda: len(self._items) < self._limit, timeout)
            if len(self._items) >= self._limit:
                raise queue.Full
        self._items.append(item)

    def get(self, timeout: float | None = None) -> Any:
        if not self._items:
            self._scheduler.wait(lambda: bool(self._items), timeout)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


@contextmanager
def replaced(places: dict[tuple[Any, str], Any]) -> Iterator[None]:
    """Let attributes of modules and classes be others, as long as the block runs."""
    before = {place: getattr(*place) for place in places}
    try:
        for (holder, name), value in places.items():
            setattr(holder, name, value)
        yield
    finally:
        for (holder, name), value in before.items():
            setattr(holder, name, value)
