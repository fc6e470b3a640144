"""Where a stream stands, kept durably: positions, their stores, leases and audit trail.

Belongs here: what a position is, the contract of stores and the five places a position can be kept. Does not: when
a position moves (the producer decides) and what a token means to a server (the driver and the engine know).
"""

from tailrace.capture.positions.audit_trail import Change
from tailrace.capture.positions.observed import boot_time
from tailrace.capture.positions.open import open_store
from tailrace.capture.positions.position import Counts, Position, this_process
from tailrace.capture.positions.store import Cells, Lease, PositionStore

__all__ = ["Cells", "Change", "Counts", "Lease", "Position", "PositionStore", "boot_time", "open_store", "this_process"]
