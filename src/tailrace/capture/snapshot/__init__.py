"""Reading what is already in the collections: chunks of `_id` ranges, read in parallel, merged into the stream.

Belongs here: planning chunks, reading them at one cluster time, keeping the progress over restarts, and checking which
keys are gone. Does not: delivering what was read (the producer), and why a snapshot is taken (recovery).
"""

from tailrace.capture.snapshot.backfill import Backfill, Rows
from tailrace.capture.snapshot.chunk import Chunk, FoundEvents, KeyCheck, plan_collection
from tailrace.capture.snapshot.progress import SnapshotProgress

__all__ = ["Backfill", "Chunk", "FoundEvents", "KeyCheck", "Rows", "SnapshotProgress", "plan_collection"]
