"""A Redis that is full: nothing is evicted in silence, and a batch goes on when there is memory again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from feature_changes import every_kind, moment, put
from tailrace.errors import FeaturesEvicted, FeatureStoreFull
from tailrace.features import FeatureStore, availability, read
from tailrace.features.progress import ProgressStore
from tailrace.retry import RetryPolicy
from tailrace.stand import Redis

NOON = 1_780_000_000_000


def test_a_redis_that_evicts_keys_is_refused(start_server: Callable[..., Any]) -> None:
    server = start_server(Redis, {"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"})
    progress = ProgressStore.connect(server.url, "shop")
    with pytest.raises(FeaturesEvicted, match="allkeys-lru"):
        progress.undisturbed(lambda: None)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
    progress.undisturbed(lambda: None)


def test_a_full_redis_loses_nothing_and_goes_on_with_more_memory(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(Redis, {"maxmemory": "1mb"})
    monkeypatch.setattr(availability, "POLICY", RetryPolicy(first=0.01, longest=0.1, budget=0.5))
    documents = [
        {"_id": n, "user": "u1", "at": moment(NOON - n), "amount": 1.0, "merchant": f"{n:0500}"} for n in range(3_000)
    ]
    batch = [put(n + 1, document) for n, document in enumerate(documents)]
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "100mb")
        store = FeatureStore(client, every_kind(), clock=lambda: NOON / 1000)
        store.begin()
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 1_000_000)
        with pytest.raises(FeatureStoreFull, match="maxmemory"):
            store.apply(batch)
        client.config_set("maxmemory", "200mb")
        store.apply(batch)
        assert read(client, "u1", "test", at=NOON / 1000).values["count_forever"] == 3_000
