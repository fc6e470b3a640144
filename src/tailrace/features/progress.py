"""How far a job has come, written beside the features, so that a Redis that forgot is noticed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import redis

from tailrace.errors import FeaturesLost
from tailrace.features.store import patiently

_SAVE = """
local number = tonumber(redis.call('HGET', KEYS[1], 'batch') or '-1')
local new = tonumber(ARGV[1])
if number <= new or new == 0 then
  redis.call('HSET', KEYS[1], 'batch', ARGV[1], 'updated_at', ARGV[4])
  if ARGV[2] ~= '' then
    redis.call('HSET', KEYS[1], 'position', ARGV[2], 'as_of', ARGV[3])
  end
end
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The last batch that is in the features."""

    batch: int
    position: str
    as_of: int
    """Cluster time of its newest event, in seconds."""


class ProgressKeeper:
    """Reads and writes the hash `prefix:progress`."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._redis = client
        self._key = f"{prefix}:progress"
        self._save = client.register_script(_SAVE)

    @classmethod
    def connect(cls, url: str, prefix: str) -> ProgressKeeper:
        """Open it at a Redis URL."""
        return cls(redis.Redis.from_url(url), prefix)

    def check(self, batch: int) -> None:
        """Refuse to go on when the batch before this one is not in Redis: what it wrote is not there either."""
        found = patiently(lambda: self._redis.hget(self._key, "batch"))
        if batch > 0 and (found is None or int(found) < batch - 1):
            known = "nothing" if found is None else f"batch {int(found)}"
            raise FeaturesLost(f"batch {batch} comes next, and Redis knows of {known}")

    def save(self, progress: Progress) -> None:
        """Say that a batch is done; an older one changes nothing, but a first one begins anew."""
        arguments: list[str | int] = [progress.batch, progress.position, progress.as_of, int(time.time() * 1000)]
        patiently(lambda: self._save(keys=[self._key], args=arguments))
