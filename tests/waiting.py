"""Waiting for what has to happen: as long as a busy machine may need, and not a moment longer than it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 200.0
"""Below the limit of a test, and far beyond what anything takes on a machine that has nothing else to do."""


def wait_until(
    condition: Callable[[], T], what: str = "it", seconds: float = 0.0, *, work: Callable[[], object] = lambda: None
) -> T:
    """Poll until the condition gives something true, and give that; `work` is done between two polls.

    `seconds` can only make the limit longer: a short one would be a test of the machine.
    """
    deadline = time.monotonic() + max(seconds, SECONDS)
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen in time: {found!r}"
        work()
        time.sleep(0.02)
    return found
