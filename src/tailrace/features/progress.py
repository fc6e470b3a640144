"""How far a job has come, written beside the features, so that a Redis that forgot is noticed.

A Redis that is killed may come back without its last writes, acknowledged or not: with `appendfsync everysec` up to two
seconds of them, after a failover whatever the replica had not received. What is lost is the end of a sequence, so a
batch that is noted as done is there itself; what needs care is a restart between the work and the note.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tailrace.errors import FeaturesEvicted, FeaturesLost
from tailrace.features.availability import retry_until_available, run_scripts
from tailrace.features.keys import KeyNames
from tailrace.logs import get_logger
from tailrace.redis_access import RedisClient, connect, is_cluster, registered

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
_FILL = """
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'position', ARGV[1], 'as_of', ARGV[2], 'updated_at', ARGV[3])
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The last batch that is in the features."""

    batch: int
    position: str
    as_of: int
    """Cluster time of its newest event, in seconds."""


class ProgressStore:
    """Reads and writes the hash `prefix:progress`, which in a cluster has copies on all servers.

    A server of a cluster that fails over loses the end of its own writes, whatever is left on the others. So every copy
    has to know of a batch.
    """

    def __init__(self, client: RedisClient, prefix: str) -> None:
        self._redis = client
        names = KeyNames(prefix, is_cluster(client))
        self._key, self._copies = names.progress, names.progress_copies
        self._last_runs: set[str] = set()
        """The servers' runs when the work before was done: asking again before the next one would be a trip more."""
        self._save = registered(client, _SAVE)
        self._fill = registered(client, _FILL)

    @classmethod
    def connect(cls, url: str, prefix: str) -> ProgressStore:
        """Open it at a Redis URL."""
        return cls(retry_until_available(lambda: connect(url)), prefix)

    def check(self, batch: int) -> None:
        """Refuse to go on when the batch before this one is not in Redis: what it wrote is not there either."""
        found = [None if one is None else int(one) for one in self._trip("HGET", "batch")]
        if batch > 0 and (None in found or min(each for each in found if each is not None) < batch - 1):
            known = "nothing" if None in found else f"batch {min(each for each in found if each is not None)}"
            raise FeaturesLost(f"batch {batch} comes next, and Redis knows of {known}")

    def save(self, progress: Progress) -> None:
        """Say that a batch is done; an older one changes nothing, but a first one begins anew."""
        self._run_script(self._save, progress.batch, progress.position, progress.as_of, _now())

    def filled(self, position: str, as_of: int) -> None:
        """Say that everything up to a position is in the features; the batches behind it have not begun."""
        self._run_script(self._fill, position, as_of, _now())

    def position(self) -> tuple[str, int] | None:
        """Give the newest token in the features, and its time in seconds; None when there are no features."""
        found: list[bytes | None] = retry_until_available(lambda: self._redis.hmget(self._key, "position", "as_of"))  # type: ignore[arg-type,return-value]
        position, as_of = found
        return None if position is None or as_of is None else (position.decode(), int(as_of))

    def undisturbed(self, work: Callable[[], _Result]) -> _Result:
        """Do repeatable work, again if a server was started again or replaced since: writes may be lost."""
        runs = self._last_runs or self._runs()
        while True:
            result = work()
            before, runs = runs, self._runs()
            self._last_runs = runs
            if before == runs:
                return result
            _log.warning("batch_written_again", why="Redis was started again, or a replica has taken over")

    def _runs(self) -> set[str]:
        """Give the ids of the servers' runs; a server that may evict keys is refused."""
        options = {"target_nodes": "primaries"} if self._copies else {}
        answer: Any = retry_until_available(lambda: self._redis.info(**options))
        servers = [answer] if "run_id" in answer else list(answer.values())
        for server in servers:
            policy = server.get("maxmemory_policy", "noeviction")
            if server.get("maxmemory", 0) and policy != "noeviction":
                raise FeaturesEvicted(f"Redis removes keys when it is full (maxmemory-policy {policy})")
        return {server["run_id"] for server in servers}

    def _run_script(self, script: Any, *arguments: object) -> None:
        """Run a script on the copies, then on the hash itself, which is what others read."""
        if self._copies:
            run_scripts(self._redis, script, [([key], arguments) for key in self._copies])
        run_scripts(self._redis, script, [([self._key], arguments)])

    def _trip(self, command: str, *arguments: str) -> list[Any]:
        """Ask for the hash and all copies in one trip."""

        def ask() -> list[Any]:
            with self._redis.pipeline(transaction=False) as trip:
                for key in (self._key, *self._copies):
                    trip.execute_command(command, key, *arguments)
                return trip.execute()

        return retry_until_available(ask)


def _now() -> int:
    return int(time.time() * 1000)
