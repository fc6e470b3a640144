"""Fetch the next batch while the user works on the one before."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

from tailrace.driver.commands import Reply


class ReadAhead:
    """One command under way in a thread of its own; its reply, or its error, waits to be asked for.

    `ended` is called when the command is over, whether anybody still wants the reply or not.
    """

    def __init__(self, run: Callable[[], Reply], ended: Callable[[], None]) -> None:
        self._run = run
        self._ended = ended
        self._reply: Reply | None = None
        self._error: BaseException | None = None
        self.running = True
        self._thread = Thread(target=self._work, name="tailrace-read-ahead", daemon=True)
        self._thread.start()

    def result(self) -> Reply:
        """Wait for the reply, or raise what the command raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._reply is not None
        return self._reply

    def _work(self) -> None:
        try:
            self._reply = self._run()
        except BaseException as error:
            self._error = error
        finally:
            self.running = False
            self._ended()
