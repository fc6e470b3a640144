"""What is asked of a producer while it runs: to stop, to pause, or to take a step before the stream goes on."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tailrace.capture.producer.options import FirstStep
from tailrace.errors import ControlRefused


class Stopped(Exception):
    """The producer was told to stop or to pause while it waited."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that a person asked for by name; `collections` narrows a snapshot, none are all."""

    kind: FirstStep = FirstStep.GO_ON
    collections: tuple[str, ...] = ()


_GO_ON = Step()


class Controls:
    """Asked from any thread or signal handler, obeyed by the producer's thread between two batches.

    A pause lasts as long as the process does: a restart is a way to go on.
    """

    def __init__(self, step: FirstStep = FirstStep.GO_ON) -> None:
        self._lock = threading.Lock()
        self.step = Step(step)
        """What is to be done before the stream goes on."""
        self._paused = threading.Event()
        self._stopping = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether the producer is to end."""
        return self._stopping.is_set()

    @property
    def paused(self) -> bool:
        """Whether nothing is to be read for now."""
        return self._paused.is_set()

    @property
    def interrupts(self) -> bool:
        """Whether an attempt that follows the stream should end what it does."""
        return self._stopping.is_set() or self._paused.is_set() or self.step != _GO_ON

    def stop(self) -> None:
        """Ask for the end."""
        self._stopping.set()

    def pause(self) -> None:
        """Ask that nothing is read any more."""
        self._paused.set()

    def resume(self) -> None:
        """Ask that reading goes on."""
        self._paused.clear()

    def ask(self, step: Step) -> None:
        """Ask for a step; there is one at a time."""
        with self._lock:
            if self.step != _GO_ON:
                raise ControlRefused(f"{self.step.kind.value} and has not begun yet", status=409)
            self.step = step

    def taken(self, step: Step) -> None:
        """Note that a step is begun, in a way that a restart goes on with."""
        with self._lock:
            if self.step is step:
                self.step = _GO_ON

    def wait(self, seconds: float) -> None:
        """Wait, unless told to stop meanwhile."""
        if self._stopping.wait(seconds):
            raise Stopped
