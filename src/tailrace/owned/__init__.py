"""Threads and processes that have an owner: it learns how they end, and they never outlive it.

Everything that tailrace starts is started by these classes, in the product and in its tests.
"""

from tailrace.owned.processes import GuardedProcess, end_with_parent, handling_signals, run_guarded
from tailrace.owned.threads import OwnedThread, repeated, run_together

__all__ = [
    "GuardedProcess",
    "OwnedThread",
    "end_with_parent",
    "handling_signals",
    "repeated",
    "run_guarded",
    "run_together",
]
