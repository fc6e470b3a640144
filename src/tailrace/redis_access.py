"""Connections to Redis and Redis Cluster, and what a server refuses for want of a permission."""

from __future__ import annotations

import re
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tailrace.errors import NotAuthorized, SettingsError

if TYPE_CHECKING:
    import redis
    from redis.cluster import RedisCluster

RedisClient: TypeAlias = "redis.Redis | RedisCluster"
CLUSTER_SCHEMES: Final = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""How the URL of any node of a Redis Cluster begins, and how that of a single server would."""
_DIRECTLY: Final = re.compile(r"run the '(\w+)' command")
_IN_A_SCRIPT: Final = re.compile(r"call to f_([0-9a-f]{40})\): @user_script:(\d+):.*can't run this command", re.DOTALL)
_COMMAND: Final = re.compile(r"\('([A-Z]{3,})'")
_scripts: dict[str, list[str]] = {}


def connect(url: str, **options: Any) -> RedisClient:
    """Give a client for a URL; that of a cluster asks its node for the others at once, any other connects when used."""
    from redis.cluster import RedisCluster
    from redis.exceptions import ConnectionError, RedisClusterException

    scheme, separator, rest = url.partition("://")
    if scheme not in CLUSTER_SCHEMES:
        return connect_to_server(url, **options)
    try:
        return RedisCluster.from_url(f"{CLUSTER_SCHEMES[scheme]}{separator}{rest}", **options)
    except RedisClusterException as error:
        if "not enabled" in str(error):
            hint = f"The URL of a single server begins with {CLUSTER_SCHEMES[scheme]}://."
            raise SettingsError("the Redis server is not part of a cluster", hint=hint) from None
        raise ConnectionError(str(error)) from error


def connect_to_server(url: str, **options: Any) -> redis.Redis:
    """Give a client for the URL of a single server; a ValueError says what is wrong with the URL."""
    import redis

    client = redis.Redis.from_url(url, **options)
    try:
        client.connection_pool.make_connection()  # connects to nobody, and knows the names of its options
    except TypeError as error:
        unknown = re.search(r"argument '(\w+)'", str(error))
        raise ValueError(f"there is no option {unknown[1]}" if unknown else str(error)) from None
    return client


def is_cluster(client: RedisClient) -> bool:
    """Whether keys are spread over several servers."""
    from redis.cluster import RedisCluster

    return isinstance(client, RedisCluster)


def slots_of(client: RedisClient) -> dict[str, str] | None:
    """Give the slots of each primary of a cluster; None while some of them move. A single server has none."""
    from redis.cluster import RedisCluster

    if not isinstance(client, RedisCluster):
        return {}
    found: dict[str, str] = {}
    for primary in client.get_primaries():  # type: ignore[no-untyped-call]
        nodes: Any = client.execute_command("CLUSTER NODES", target_nodes=primary)  # type: ignore[no-untyped-call]
        own = next(node for node in nodes.values() if "myself" in node["flags"])
        if own["migrations"]:
            return None
        found[own["node_id"]] = str(own["slots"])
    return found


def registered(client: RedisClient, script: str) -> Any:
    """Give a script that can be called, and know its lines: of a command inside, Redis names the line alone."""
    _scripts[sha1(script.encode(), usedforsecurity=False).hexdigest()] = script.splitlines()
    return client.register_script(script)


def not_authorized(error: Exception) -> NotAuthorized | None:
    """Give the error of ours where the user of Redis lacks a permission; None for every other error."""
    text = str(error)
    if direct := _DIRECTLY.search(text):
        lacking = f"the command {direct[1]}"
    elif inside := _IN_A_SCRIPT.search(text):
        lacking = f"the command {_commands(_scripts.get(inside[1], []), int(inside[2]))} in a script"
    elif "EXEC without MULTI" in text:
        lacking = "the command multi"
    elif "access one of the keys" in text:
        lacking = "the pattern of a key"
    else:
        return None
    # What Redis says is left out: it quotes keys, and so values of documents.
    return NotAuthorized(
        f"the user of Redis lacks {lacking}", hint="Allow it with ACL SETUSER; the security page has the rules."
    )


def _commands(script: list[str], line: int) -> str:
    """Give the commands of a line; where it has them from a variable, those of the script."""
    found = _COMMAND.findall(" ".join(script[line - 1 : line])) or _COMMAND.findall(" ".join(script))
    return " or ".join(dict.fromkeys(each.lower() for each in found))
