"""What the dashboard polls, one file each: oplogs, positions, producers, topics, Redis, tables, gateways, dead letters.

A source opens what it needs at its first poll, gives plain values, and raises when it cannot; `polling.py` runs each in
a thread of its own and keeps the reason, so that one that fails or hangs harms no other. Judging what was observed does
not belong here.
"""

from tailrace.dashboard.sources.polling import PolledSource, Reading, Source, reason_of

__all__ = ["PolledSource", "Reading", "Source", "reason_of"]
