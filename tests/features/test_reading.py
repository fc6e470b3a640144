"""Reading changes nothing in a real Redis, whoever reads and for whatever moment."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from feature_changes import every_kind, moment, put
from feature_recomputation import recomputed
from tailrace.features import FeatureStore, read

NOON = 1_780_000_000_000
DAY = 86_400_000
DOCUMENTS = [
    {"_id": number, "user": "u1", "at": moment(NOON - age), "amount": 10.0 * number, "merchant": f"m{number % 3}"}
    for number, age in enumerate((1_000, 50_000, 70_000, 3_000_000, 4_000_000, 2 * DAY))
]


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server.url) as made:
        store = FeatureStore(made, every_kind(), clock=lambda: NOON / 1000)
        store.begin()
        store.apply([put(number + 1, document) for number, document in enumerate(DOCUMENTS)])
        yield made


def everything(client: redis.Redis) -> dict[bytes, Any]:
    return {key: client.dump(key) for key in client.keys("*")}


@pytest.mark.parametrize("shift", [30 * DAY, -3_000_000, 65_000, -DAY])
def test_a_reader_of_any_moment_leaves_everything_as_it_is(client, shift):
    before = everything(client)
    at = NOON + shift
    found = read(client, "u1", "test", at=at / 1000)
    expected = recomputed(every_kind(), DOCUMENTS, at)
    assert dict(found.values) == {
        name: pytest.approx(value) if isinstance(value, float) else value for name, value in expected.items()
    }
    assert everything(client) == before
    assert read(client, "u1", "test", at=NOON / 1000)["count_1h"] == 4


def test_a_user_who_may_only_read_reads_windows_that_have_slid(client, redis_server):
    client.acl_setuser("reader", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@read"], reset=True)
    try:
        with redis.Redis(port=redis_server.port, username="reader", password="secret") as reader:
            assert read(reader, "u1", "test", at=NOON / 1000 + 65)["count_1h"] == 4
            assert read(reader, "u1", "test", at=NOON / 1000 + 3600)["count_1h"] == 0
    finally:
        client.acl_deluser("reader")
