"""The log of events that many threads read side by side."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from bson.timestamp import Timestamp

from tailrace.hub.event_log import EventLog
from tailrace.token.resume_token import ResumeToken


class PlainLog(EventLog):
    """A log that is given its events by the test."""

    @property
    def has_data(self) -> bool:
        return False

    @property
    def end_position(self) -> ResumeToken:
        return ResumeToken.high_water_mark(Timestamp(1, 1))

    def _make_events(self, *, only_quick: bool) -> bool:
        return True


@pytest.fixture
def eager_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
def test_many_threads_share_what_they_made() -> None:
    log, failed = PlainLog(0, 1 << 20), list[BaseException]()

    def share(first: int) -> None:
        try:
            for number in range(3_000):
                log.share((first, number), number, 1)
                log.shared((first, number - 1))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=share, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
