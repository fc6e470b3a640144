"""What the dashboard looks at, one file each: oplogs, positions, producers, topics, Redis, tables, gateways, letters.

A source opens what it needs at its first look, gives plain values, and raises when it cannot; `watched.py` runs each in
a thread of its own and keeps the reason, so that one that fails or hangs harms no other. Judging what was seen does not
belong here.
"""

from tailrace.dashboard.sources.watched import Reading, Source, Watched, reason_of

__all__ = ["Reading", "Source", "Watched", "reason_of"]
