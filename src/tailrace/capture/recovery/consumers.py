"""The streams of a position store as the monitor wants to see them."""

from __future__ import annotations

from tailrace.capture.positions.store import PositionStore
from tailrace.capture.recovery.gaps import GapLedger, GapState
from tailrace.errors import PositionInvalid
from tailrace.monitor import Consumer
from tailrace.token import ResumeToken


def consumer_of(store: PositionStore, name: str) -> Consumer:
    """Give the stream of a name: its position, on each shard where that is known, and whether it recovers."""
    position = store.load(name)
    if position is None:
        raise PositionInvalid(f"the store has no position for {name}", hint="`tailrace position show` lists the names.")
    gap = GapLedger(store.cells, name).open_gap()
    return Consumer(
        name,
        position.cluster_time,
        {shard: ResumeToken.parse(token).cluster_time for shard, token in position.shards.items()},
        position.counts.events,
        position.saved_at.timestamp() if position.saved_at else None,
        recovering=gap is not None and gap.state is GapState.RECOVERING,
    )
