"""A Redis that comes back without its last writes is noticed, and they are written again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tailrace.errors import FeaturesLost
from tailrace.features.progress import Progress, ProgressStore
from tailrace.stand import Redis


@pytest.fixture
def forgetful(start_server: Callable[..., Any]) -> Any:
    """A server that keeps nothing."""
    return start_server(Redis, {"appendonly": "no"})


def test_work_is_done_again_when_the_server_was_started_again(forgetful) -> None:
    progress_store = ProgressStore.connect(forgetful.url, "shop")
    done: list[str] = []
    with redis.Redis.from_url(forgetful.url) as client:

        def work() -> str:
            client.set("feature", "right")
            if not done:
                forgetful.kill()
                forgetful.restart()
            progress_store.save(Progress(0, "82", 1))
            done.append("once")
            return "result"

        assert progress_store.undisturbed(work) == "result"
        assert len(done) == 2
        assert client.get("feature") == b"right"
        assert progress_store.undisturbed(lambda: done.append("more")) is None
        assert done == ["once", "once", "more"]


def test_a_batch_is_refused_when_the_one_before_is_not_there(forgetful) -> None:
    progress_store = ProgressStore.connect(forgetful.url, "shop")
    progress_store.check(0)
    for batch in range(3):
        progress_store.save(Progress(batch, "82", 1))
    progress_store.check(3)
    with pytest.raises(FeaturesLost, match="batch 4 comes next, and Redis knows of batch 2"):
        progress_store.check(4)
    forgetful.kill()
    forgetful.restart()
    with pytest.raises(FeaturesLost, match="Redis knows of nothing"):
        progress_store.check(3)
