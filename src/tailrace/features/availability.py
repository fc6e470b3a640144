"""Calls of Redis that are made again while it is away, starts, fails over, moves slots or is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from redis.exceptions import (
    BusyLoadingError,
    ClusterError,
    ConnectionError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from tailrace.errors import FeatureStoreFull, FeatureStoreUnavailable, SettingsError
from tailrace.redis_access import RedisClient, not_authorized
from tailrace.retry import RetryPolicy, retried

T = TypeVar("T")
POLICY: Final = RetryPolicy(first=0.1, longest=1.0, budget=60.0)
_AWAY: Final = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    NoScriptError,
    ReadOnlyError,
    ClusterError,
    RedisClusterException,
    TryAgainError,
)
"""What passes: a server that was demoted says that it is read-only, slots on their way say to try again."""


def retry_until_available(call: Callable[[], T]) -> T:
    """Make a call again while Redis is away, starts or is full; everything here may be repeated."""
    try:
        return retried(call, POLICY, is_passing=_is_passing, spent=_unavailable)
    except MovedError:
        hint = "Write redis+cluster://host:port, or rediss+cluster://host:port, in features.redis_url."
        raise SettingsError("features.redis_url names a node of a Redis Cluster", hint=hint) from None
    except ResponseError as error:
        raise not_authorized(error) or error from None


def run_scripts(client: RedisClient, script: Any, calls: Sequence[tuple[Sequence[str], Sequence[object]]]) -> list[Any]:
    """Run a script many times in one trip, each with its keys and arguments.

    Asking first whether Redis has it would be a trip of its own.
    """

    def run() -> list[Any]:
        with client.pipeline(transaction=False) as trip:
            for keys, arguments in calls:  # the method `evalsha` of a cluster's pipeline refuses to be used
                trip.execute_command("EVALSHA", script.sha, len(keys), *keys, *arguments)
            return trip.execute()

    def run_loaded() -> list[Any]:
        try:
            return run()
        except NoScriptError:  # a Redis that was started anew
            client.script_load(script.script)
            return run()

    return retry_until_available(run_loaded)


def _is_passing(error: Exception) -> bool:
    return isinstance(error, _AWAY) or _is_full(error)


def _is_full(error: Exception) -> bool:
    """Whether Redis is at its `maxmemory`; of a script it says so in the text alone, and before the script writes."""
    return isinstance(error, OutOfMemoryError) or "OOM command not allowed" in str(error)


def _unavailable(error: Exception) -> FeatureStoreUnavailable | FeatureStoreFull:
    if _is_full(error):
        return FeatureStoreFull("Redis is at its maxmemory, and takes no more features")
    return FeatureStoreUnavailable(f"Redis does not answer: {error}")
