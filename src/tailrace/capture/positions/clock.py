"""The clock that leases are measured with: it never jumps, and a suspended machine does not stop it."""

from __future__ import annotations

import time

# On macOS, which has no CLOCK_BOOTTIME, CLOCK_MONOTONIC goes on while the machine sleeps; on Linux it does not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Give the seconds since this machine was started, those included in which it was suspended."""
    return time.clock_gettime(_CLOCK)
