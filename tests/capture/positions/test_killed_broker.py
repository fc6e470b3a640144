"""The broker of a position store that is killed while a position is saved, and while the lease changes hands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson import Timestamp

from tailrace.capture.positions import Lease, Position, PositionStore
from tailrace.capture.positions.open import open_store
from tailrace.errors import LeaseHeld, LeaseLost, StoreUnavailable
from tailrace.owned import OwnedThread
from tailrace.stand import Kafka

pytestmark = pytest.mark.long


def position(seconds: int) -> Position:
    return Position(bson.encode({"_data": f"82{seconds:08X}000000012B0229296E04"}), Timestamp(seconds, 1))


def patiently(step: Callable[[], Any], *also: type[Exception]) -> Any:
    """Do something, again and again while the store does not answer, as a producer does."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return step()
        except (StoreUnavailable, *also):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class Saver:
    """Saves one position after another in a thread; `acknowledged` is the last one that the store took."""

    def __init__(self, store: PositionStore, lease: Lease) -> None:
        self.acknowledged = 0
        self.refused: LeaseLost | None = None
        self._store = store
        self._lease = lease
        self._stop = threading.Event()
        self._thread = OwnedThread(self._run, name="saver")
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(240)

    def wait_for(self, number: int) -> None:
        deadline = time.monotonic() + 180
        while self.acknowledged < number and self.refused is None:
            assert time.monotonic() < deadline, f"still at {self.acknowledged}"
            time.sleep(0.01)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._lease = patiently(self._save)
                self.acknowledged += 1
        except LeaseLost as lost:
            self.refused = lost

    def _save(self) -> Lease:
        return self._store.save(position(self.acknowledged + 1), self._lease, reason="next")


def wait_for_position(store: PositionStore, number: int) -> None:
    """Wait until an onlooker sees a position: a commit that was acknowledged is readable when its marker is written,
    which a broker that was killed does some time after it is back.
    """
    deadline = time.monotonic() + 180
    while (held := patiently(lambda: store.load("orders"))) is None or held.cluster_time.time < number:
        assert time.monotonic() < deadline, f"still at {held}"
        time.sleep(0.2)


def test_a_broker_killed_in_the_middle_of_saves_loses_none_that_was_acknowledged(
    start_server: Callable[..., Any],
) -> None:
    server = start_server(Kafka)
    with open_store(f"kafka://{server.address}") as store:
        saver = Saver(store, store.acquire("orders", "host/1", seconds=600))
        for turn in range(3):
            saver.wait_for(saver.acknowledged + 3 + turn)
            server.kill()
            acknowledged = saver.acknowledged
            server.restart()
            with open_store(f"kafka://{server.address}") as other:
                wait_for_position(other, acknowledged)
            saver.wait_for(acknowledged + 3)
        saver.end()
        assert saver.refused is None
    with open_store(f"kafka://{server.address}") as again:
        wait_for_position(again, saver.acknowledged)
        moved = [change.position.cluster_time.time for change in reversed(again.history("orders", 10_000))
                 if change.what == "moved" and change.position]  # fmt: skip
    assert moved == list(range(1, saver.acknowledged + 1)), "each save once, in order"


@pytest.mark.parametrize("pause", [1.9, 2.1, 2.4])
def test_a_broker_killed_while_the_lease_changes_hands_leaves_one_holder(
    start_server: Callable[..., Any], pause: float
) -> None:
    """The pause is about as long as the lease, which the challenger has watched for its whole length then."""
    server = start_server(Kafka)
    with open_store(f"kafka://{server.address}") as first, open_store(f"kafka://{server.address}") as second:
        old = first.renew(first.acquire("orders", "here/1", seconds=2))
        taken: list[Lease] = []
        taker = OwnedThread(
            lambda: taken.append(patiently(lambda: second.acquire("orders", "there/1", seconds=2), LeaseHeld)),
            name="taker",
        )
        taker.start()
        time.sleep(pause)
        server.kill()
        server.restart()
        taker.join(240)
        assert [lease.epoch for lease in taken] == [old.epoch + 1]
        with pytest.raises(LeaseLost):
            patiently(lambda: first.save(position(1), old))
        patiently(lambda: second.save(position(2), taken[0]))
        held = patiently(lambda: first.load("orders"))
        assert held.cluster_time.time == 2
