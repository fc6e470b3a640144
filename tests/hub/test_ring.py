"""The newest entries of an oplog, within a bound."""

from __future__ import annotations

import tracemalloc

import pytest

from tailrace.hub.ring import Ring
from tailrace.oplog.source import OplogBatch

MB = 1_000_000


@pytest.mark.parametrize("at_once", [1, 100])
def test_a_ring_takes_as_much_memory_as_it_says(at_once: int) -> None:
    """Also of entries that come one by one, where what Python adds is as much as they are."""
    ring = Ring(0, MB)
    tracemalloc.start()
    try:
        for number in range(20_000 // at_once):
            ring.append(OplogBatch([bytes(200) for _ in range(at_once)], 2**40 + number))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 * MB < held < 1.05 * MB
    assert ring.size <= MB
