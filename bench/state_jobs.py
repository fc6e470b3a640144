"""Features of many users: fills Redis with their state, then applies events that are spread over all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import bson

from bench.child import Marks
from bench.feature_set import definition
from bench.workload import transaction
from tailrace.features import FeatureStore
from tailrace.features.store import Change

_BATCH = 1_000


class StateJob:
    """The state of so many users in one Redis, of whom the first ones are there already."""

    def __init__(self, url: str, before: int, users: int, events: int) -> None:
        self._store = FeatureStore.connect(url, definition())
        self._store.begin()
        self._users = users
        self._version = time.time_ns()
        self._rng = random.Random(users)
        for first in range(before, users, _BATCH):
            self._store.apply(self._changes(range(first, min(first + _BATCH, users))))

    def run(self, marks: Marks) -> None:
        """Apply events of users who are drawn from all."""
        drawn = [self._rng.randrange(self._users) for _ in range(marks.events)]
        batches = [list(self._changes(drawn[first : first + _BATCH])) for first in range(0, len(drawn), _BATCH)]
        marks.begin()
        for batch in batches:
            self._store.apply(batch)
            marks.add(len(batch))

    def _changes(self, users: range | list[int]) -> Iterator[Change]:
        now = time.time_ns() // 1_000
        for user in users:
            self._version += 1
            fields = {**transaction(user, now), "user_id": f"user-{user}"}
            version = f"{self._version:020d}"
            yield Change(str(fields["_id"]), version, bson.encode(fields), as_of=now // 1_000_000)
