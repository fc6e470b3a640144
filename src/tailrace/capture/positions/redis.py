"""Positions in Redis: one key per name, and one list of its changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from tailrace.capture.positions.observed import digest_of
from tailrace.errors import SettingsError, StoreUnavailable
from tailrace.redis_access import connect_to_server, not_authorized, registered
from tailrace.settings import masked

_SECONDS = 10
# The braces put all keys on one node of a Redis cluster, as a script needs them.
_CELL = "{tailrace}:position:"
_TRAIL = "{tailrace}:position-changes:"
_NAMES = "{tailrace}:positions"
_WRITTEN = "{tailrace}:position-written:"
_SWAP = """
local held = redis.call('GET', KEYS[1])
if (held or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SADD', KEYS[3], ARGV[4])
if ARGV[3] ~= '' then redis.call('LPUSH', KEYS[2], ARGV[3]) end
local now = redis.call('TIME')
redis.call('HSET', KEYS[4], 'digest', ARGV[5], 'second', now[1], 'microsecond', now[2])
return 1
"""
_AGE = """
local written = redis.call('HMGET', KEYS[2], 'digest', 'second', 'microsecond')
if redis.call('GET', KEYS[1]) ~= ARGV[1] or written[1] ~= ARGV[2] then return false end
local now = redis.call('TIME')
return (now[1] - written[2]) * 1000000 + now[2] - written[3]
"""


class RedisCells:
    """Keys that a script changes in one step.

    How much a crash of the machine can take back is the server's `appendfsync`. A position that goes back is safe
    with at-least-once delivery: some records are delivered again.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._client = connect_to_server(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS)
        except ValueError as error:
            raise SettingsError(f"{masked(url)} is not a Redis URL: {masked(str(error))}") from None
        self._swap = registered(self._client, _SWAP)
        self._age = registered(self._client, _AGE)

    def read(self, name: str) -> bytes | None:
        """Give the cell, or None when there is none."""
        with self._answering():
            return self._client.get(_CELL + name)  # type: ignore[return-value]

    def swap(self, name: str, expected: bytes | None, cell: bytes, change: bytes | None) -> bool:
        """Replace the key if it still holds `expected`."""
        keys = [_CELL + name, _TRAIL + name, _NAMES, _WRITTEN + name]
        with self._answering():
            return bool(self._swap(keys, [expected or b"", cell, change or b"", name, digest_of(cell)]))

    def seconds_since_written(self, name: str, cell: bytes) -> float | None:
        """Give the age by the clock of the server."""
        with self._answering():
            microseconds = self._age([_CELL + name, _WRITTEN + name], [cell, digest_of(cell)])
        return None if microseconds is None else int(microseconds) / 1e6

    def changes(self, name: str, limit: int) -> list[bytes]:
        """Give the last changes, the newest first."""
        with self._answering():
            return list(self._client.lrange(_TRAIL + name, 0, limit - 1))  # type: ignore[arg-type]

    def names(self) -> list[str]:
        """Give every name that has a cell."""
        with self._answering():
            return [name.decode() for name in self._client.smembers(_NAMES)]  # type: ignore[union-attr]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise not_authorized(error) or StoreUnavailable(
                f"Redis at {masked(self._url)} cannot keep positions: {error}"
            ) from error
