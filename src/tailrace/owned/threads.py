"""A thread whose owner learns of its death: it is reported, and the owner restarts it or ends."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from tailrace.logs import get_logger

_LONGEST_REPORT = 300

OnDeath: TypeAlias = Callable[[BaseException], float | None]
"""Gets what ended the thread; gives the seconds after which it is run again, or None when it has ended for good."""


class OwnedThread:
    """Runs a function in a daemon thread. An exception is logged, kept as `error`, and handed to the owner.

    What a function can expect to fail is its own business; an exception that leaves it is a death. The owner says by
    `on_death`, which is called in the thread, what becomes of it. Without one the thread ends, and its owner has to
    look at `error`.
    """

    def __init__(self, run: Callable[[], object], *, name: str, on_death: OnDeath | None = None) -> None:
        self.name = name
        self.deaths = 0
        """How often it died; more than one when it was run again."""
        self.error: BaseException | None = None
        """What ended it last."""
        self._run = run
        self._on_death = on_death
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or will be run again."""
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it ends; after a death it is not run again. False when it did not end in time.

        The owner has asked the function to end before. A thread that was not started has ended.
        """
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _live(self) -> None:
        while True:
            try:
                self._run()
            except BaseException as error:
                pause = self._died(error)
            else:
                return
            if pause is None or self._ending.wait(pause):
                return

    def _died(self, error: BaseException) -> float | None:
        self.deaths += 1
        self.error = error
        _report("thread_died", self.name, error)
        if self._on_death is None:
            return None
        try:
            return self._on_death(error)
        except Exception as failure:
            _report("owner_failed", self.name, failure)
            return None


@contextmanager
def repeated(
    call: Callable[[], object], every: float, *, name: str, at_once: bool = False, seconds_to_end: float = 5.0
) -> Iterator[None]:
    """Make a call every so many seconds, in a thread of its own, while the block runs.

    The first one comes after that time, or `at_once`. A call that raises is logged, and the next one is made in time.
    """
    ending = threading.Event()

    def run() -> None:
        if at_once:
            call()
        while not ending.wait(every):
            call()

    thread = OwnedThread(run, name=name, on_death=lambda _: every if at_once else 0.0)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(timeout=seconds_to_end)


def run_together(calls: Sequence[Callable[[], object]], *, name: str) -> list[BaseException]:
    """Make calls at the same time, each in a thread, and wait for all; gives what failed, which is logged already."""
    threads = [OwnedThread(call, name=name) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [thread.error for thread in threads if thread.error is not None]


def _report(event: str, name: str, error: BaseException) -> None:
    from tailrace.settings import masked

    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
    get_logger().error(event, thread=name, error=masked(repr(error))[:_LONGEST_REPORT], where=where)
