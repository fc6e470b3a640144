from __future__ import annotations

import threading

import pytest

from tailrace.capture.source.reader import ByteQueue, Closed
from waiting import SECONDS


def test_a_writer_waits_when_the_bytes_are_used_up_and_goes_on_when_there_is_room() -> None:
    queue: ByteQueue[int] = ByteQueue(100)
    most = 0

    def write() -> None:
        for number in range(50):
            queue.put(number, 30)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    taken = []
    while len(taken) < 50:
        most = max(most, queue.buffered)
        item = queue.get(5)
        assert item is not None
        taken.append(item)
    writer.join(SECONDS)
    assert taken == list(range(50))
    assert most <= 100
    assert queue.buffered == 0


def test_one_item_always_fits() -> None:
    queue: ByteQueue[str] = ByteQueue(10)
    queue.put("large", 1_000)
    assert queue.get(0) == "large"


def test_an_error_comes_after_all_items_and_once() -> None:
    queue: ByteQueue[str] = ByteQueue(10)
    queue.put("first", 1)
    queue.fail(ValueError("the writer died"))
    assert queue.get(0) == "first"
    with pytest.raises(ValueError, match="the writer died"):
        queue.get(0)
    assert queue.get(0) is None


def test_closing_lets_a_waiting_writer_go() -> None:
    queue: ByteQueue[int] = ByteQueue(1)
    queue.put(1, 1)
    ended = threading.Event()

    def write() -> None:
        with pytest.raises(Closed):
            queue.put(2, 1)
        ended.set()

    threading.Thread(target=write, daemon=True).start()
    queue.close()
    assert ended.wait(SECONDS)
