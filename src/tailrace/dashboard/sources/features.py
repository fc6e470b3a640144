"""The features in Redis: which jobs write them, and how far each has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis

from tailrace.errors import ServerUnreachable
from tailrace.features import Definition
from tailrace.redis_access import RedisClient, connect, is_cluster, not_authorized

_SECONDS_TO_ANSWER = 2.0
_KEYS_OF_A_POLL = 2_000
"""How much of the keys one poll searches for definitions; a large Redis is gone through in many looks."""
_DEFINITION = ":definition"


@dataclass(frozen=True, slots=True)
class FeaturesProgress:
    """A job's definition, and the batch that is in its features."""

    definition: Definition
    batch: int | None
    as_of: int | None
    """Cluster time of the newest event, in seconds."""
    updated_at: float | None
    position: str | None
    """Token of that event."""


class FeaturesSource:
    """Reads what jobs leave beside the features."""

    name = "redis"

    def __init__(self, url: str, names: tuple[str, ...] = ()) -> None:
        self._url = url
        self._names = set(names)
        self._searches = not names
        self._cursor = 0
        self._client: RedisClient | None = None

    def poll(self) -> list[FeaturesProgress]:
        """Read the progress of all jobs that are known, and search on for others."""
        try:
            client = self.client()
            client.ping()
            if self._searches:
                self._search(client)
            found = [self._progress(client, name) for name in sorted(self._names)]
        except redis.RedisError as error:
            raise not_authorized(error) or ServerUnreachable(f"Redis does not answer: {error}") from None
        return [progress for progress in found if progress is not None]

    def client(self) -> RedisClient:
        """Give a client that answers, or fails, soon."""
        if self._client is None:
            self._client = connect(
                self._url, socket_timeout=_SECONDS_TO_ANSWER, socket_connect_timeout=_SECONDS_TO_ANSWER
            )
        return self._client

    def close(self) -> None:
        """Give the connections back."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _search(self, client: RedisClient) -> None:
        if is_cluster(client):
            self._names |= {_name(key) for key in client.scan_iter(match=f"*{_DEFINITION}", count=_KEYS_OF_A_POLL)}
            return
        answer: Any = client.scan(self._cursor, match=f"*{_DEFINITION}", count=_KEYS_OF_A_POLL, _type="string")
        self._cursor, keys = answer
        self._names |= {_name(key) for key in keys}

    def _progress(self, client: RedisClient, name: str) -> FeaturesProgress | None:
        form: Any = client.get(f"{name}{_DEFINITION}")
        if form is None:
            return None
        stored: Any = client.hgetall(f"{name}:progress")
        hash_ = {field.decode(): value.decode() for field, value in stored.items()}
        return FeaturesProgress(
            definition=Definition.from_json(form),
            batch=int(hash_["batch"]) if "batch" in hash_ else None,
            as_of=int(hash_["as_of"]) if "as_of" in hash_ else None,
            updated_at=int(hash_["updated_at"]) / 1_000 if "updated_at" in hash_ else None,
            position=hash_.get("position"),
        )


def _name(key: bytes) -> str:
    return key.decode().removesuffix(_DEFINITION)
