"""Proved before trusted: the engine's events beside the server's own, and what may be believed of which kind.

`Comparator` joins the two sides, `TrustLedger` counts what it finds by `Kind`, `Beside` reads both streams. None of
them knows a server: who reads them hands in the streams (`capture.source.proving`, `tailrace engine prove`).
"""

from tailrace.proof.comparator import Comparator, Comparison
from tailrace.proof.kind import MARK, Kind
from tailrace.proof.ledger import Difference, LedgerFile, Trust, TrustLedger, build_name
from tailrace.proof.trial import Beside, Calm, Trial

__all__ = [
    "MARK",
    "Beside",
    "Calm",
    "Comparator",
    "Comparison",
    "Difference",
    "Kind",
    "LedgerFile",
    "Trial",
    "Trust",
    "TrustLedger",
    "build_name",
]
