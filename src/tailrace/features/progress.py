"""How far a job has come, written beside the features, so that a Redis that forgot is noticed.

A Redis that is killed may come back without its last writes, acknowledged or not: with `appendfsync everysec` up to two
seconds of them, after a failover whatever the replica had not received. What is lost is the end of a sequence, so a
batch that is noted as done is there itself; what needs care is a restart between the work and the note.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import redis

from tailrace.errors import FeaturesLost
from tailrace.features.store import retry_until_available
from tailrace.logs import get_logger
from tailrace.redis_access import registered

_Result = TypeVar("_Result")
_log = get_logger("tailrace.features")
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


class ProgressStore:
    """Reads and writes the hash `prefix:progress`."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._redis = client
        self._key = f"{prefix}:progress"
        self._save = registered(client, _SAVE)

    @classmethod
    def connect(cls, url: str, prefix: str) -> ProgressStore:
        """Open it at a Redis URL."""
        return cls(redis.Redis.from_url(url), prefix)

    def check(self, batch: int) -> None:
        """Refuse to go on when the batch before this one is not in Redis: what it wrote is not there either."""
        found = retry_until_available(lambda: self._redis.hget(self._key, "batch"))
        if batch > 0 and (found is None or int(found) < batch - 1):
            known = "nothing" if found is None else f"batch {int(found)}"
            raise FeaturesLost(f"batch {batch} comes next, and Redis knows of {known}")

    def save(self, progress: Progress) -> None:
        """Say that a batch is done; an older one changes nothing, but a first one begins anew."""
        arguments: list[str | int] = [progress.batch, progress.position, progress.as_of, int(time.time() * 1000)]
        retry_until_available(lambda: self._save(keys=[self._key], args=arguments))

    def filled(self, position: str, as_of: int) -> None:
        """Say that everything up to a position is in the features; the batches behind it have not begun."""
        values: dict[str, str | int] = {"position": position, "as_of": as_of, "updated_at": int(time.time() * 1000)}

        def begin() -> None:
            with self._redis.pipeline() as together:
                together.delete(self._key)
                together.hset(self._key, mapping=values)  # type: ignore[arg-type]
                together.execute()

        retry_until_available(begin)

    def position(self) -> tuple[str, int] | None:
        """Give the newest token in the features, and its time in seconds; None when there are no features."""
        found: list[bytes | None] = retry_until_available(lambda: self._redis.hmget(self._key, "position", "as_of"))  # type: ignore[arg-type,return-value]
        position, as_of = found
        return None if position is None or as_of is None else (position.decode(), int(as_of))

    def undisturbed(self, work: Callable[[], _Result]) -> _Result:
        """Do repeatable work, again if Redis was started again meanwhile: what was written before may be gone."""
        while True:
            run = self._run()
            result = work()
            if self._run() == run:
                return result
            _log.warning("batch_written_again", why="Redis was started again")

    def _run(self) -> str:
        """Give the id of the server's run."""
        return retry_until_available(lambda: str(self._redis.info("server")["run_id"]))
