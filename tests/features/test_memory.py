"""What features take in Redis, as docs/spark.md says: so much for an entity, so much for a document in a window."""

from __future__ import annotations

from typing import Any

import redis

from feature_changes import every_kind, moment, put
from tailrace.features import Definition, FeatureStore
from tailrace.features.declaration import parse_definition

NOON = 1_780_000_000_000
TWO_FEATURES = [
    {"name": "n", "kind": "count", "window": "1h"},
    {"name": "spent", "kind": "sum", "of": "amount", "window": "1h"},
]


def bytes_used(client: redis.Redis, definition: Definition, entities: int, documents: int) -> float:
    """How many bytes an entity with so many documents takes."""
    client.flushall()
    memory: Any = client.info("memory")
    store = FeatureStore(client, definition, clock=lambda: NOON / 1000)
    store.begin()
    for entity in range(entities):
        first = entity * documents
        store.apply(
            put(
                first + number + 1,
                {"_id": f"{first + number:024x}", "user": f"u{entity}", "at": moment(NOON - number), "amount": 1.5,
                 "merchant": f"m{number % 9}"},
            )
            for number in range(documents)
        )  # fmt: skip
    after: Any = client.info("memory")
    return (after["used_memory"] - memory["used_memory"]) / entities


def test_an_entity_and_a_document_take_what_the_page_says(redis_server) -> None:
    form = {"name": "small", "namespace": "shop.tx", "entity": "user", "time": "at", "feature": TWO_FEATURES}
    with redis.Redis.from_url(redis_server.url) as client:
        for definition, entity, document in ((parse_definition(form), 1_500, 600), (every_kind(), 4_000, 800)):
            assert bytes_used(client, definition, 200, 1) < entity + document
            assert bytes_used(client, definition, 20, 101) < entity + 101 * document
