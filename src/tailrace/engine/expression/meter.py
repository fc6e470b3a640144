"""What the stages may cost for one event: memory as a server allows it, and the processor time that a stream is given.

The time is that of the thread, so that a busy machine fails nobody. Whatever builds or walks values tells the meter how
many bytes that takes; it looks at the clock now and then.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Final

from tailrace import server_codes
from tailrace.engine.expression.failures import fail
from tailrace.server_codes import EXCEEDED_MEMORY_LIMIT

MAX_STRING: Final = 16 * 1024 * 1024
_MAX_BYTES: Final = 256 * 1024 * 1024
"""What one event's values may take together, those included that are thrown away again."""
_BYTES_BETWEEN_CHECKS: Final = 64 * 1024
_STEPS_BETWEEN_CHECKS: Final = 0xF
_ELEMENTS_BETWEEN_CHECKS: Final = 1_000
ELEMENT: Final = 40
"""About what an element of an array takes that was computed; one that is only copied takes a fifth."""


class _Meter(threading.local):
    spent = 0
    next_check = 0
    steps = 0
    walked = 0
    deadline = math.inf


_meter = _Meter()


def begin(seconds: float | None) -> None:
    """Begin to count for an event, or for the stages themselves when they are compiled."""
    _meter.spent = 0
    _meter.next_check = _BYTES_BETWEEN_CHECKS
    _meter.deadline = math.inf if seconds is None else time.thread_time() + seconds


def seconds_left() -> float:
    """Give how much of the time is left."""
    return _meter.deadline - time.thread_time()


def charge(seconds: float) -> None:
    """Count time that another process has spent for this thread."""
    _meter.deadline -= seconds


def spend(size: int) -> None:
    """Count bytes; fail as a server does when it is too much, of memory or of time."""
    spent = _meter.spent = _meter.spent + size
    if spent > _meter.next_check:
        _meter.next_check = spent + _BYTES_BETWEEN_CHECKS
        if spent > _MAX_BYTES:
            fail(EXCEEDED_MEMORY_LIMIT, f"the stages use too much memory. Memory limit: {_MAX_BYTES} bytes")
        if seconds_left() < 0:
            out_of_time()


def check_time() -> None:
    """Look at the clock now and then, in loops over values that are there already."""
    _meter.steps += 1
    if not _meter.steps & _STEPS_BETWEEN_CHECKS and seconds_left() < 0:
        out_of_time()


def walk(count: int) -> None:
    """Count elements of an array that a path is about to go through; look at the clock after some of them."""
    _meter.walked += count
    if _meter.walked > _ELEMENTS_BETWEEN_CHECKS:
        _meter.walked = 0
        if seconds_left() < 0:
            out_of_time()


def step() -> None:
    """Count one round of a loop over elements, in which anything may be computed."""
    check_time()
    spend(ELEMENT)


def out_of_time() -> None:
    """Fail as an operation does that has used up its time."""
    fail(
        server_codes.MAX_TIME_MS_EXPIRED,
        "operation exceeded time limit: the stages of this stream cost too much for one event",
    )


def check_string(size: int) -> None:
    """Refuse to build a string of so many characters or bytes, when servers do."""
    if size >= MAX_STRING:
        fail(16493, "Tried to create string longer than 16MB")


def count(value: Any) -> Any:
    """Count a string or an array that an operator has built, and give it back."""
    if type(value) is str:
        spend(len(value))
        if len(value) * 4 >= MAX_STRING:
            check_string(len(value.encode("utf-8", "surrogateescape")))
    elif type(value) is list:
        spend(8 * len(value))
    return value
