"""A Redis Cluster: primaries that share the slots, and replicas of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from tailrace.errors import StandError
from tailrace.owned.closeable import Closeable
from tailrace.owned.processes import run_guarded
from tailrace.stand.redis import Redis, program_of

_NODE_TIMEOUT_MS: Final = 1_000
_SECONDS: Final = 60.0
_STARTS: Final = 5


class RedisCluster(Closeable):
    """Several servers on loopback, joined by `redis-cli --cluster create`."""

    def __init__(self, primaries: int = 3, replicas: int = 0, options: Mapping[str, object] | None = None) -> None:
        """Start them; `replicas` is how many each primary has."""
        self._running = ExitStack()
        chosen = {"cluster-enabled": "yes", "cluster-node-timeout": _NODE_TIMEOUT_MS, **(options or {})}
        try:
            self.nodes = [self._node(chosen) for _ in range(primaries + primaries * replicas)]
            addresses = [node.address for node in self.nodes]
            self.command("--cluster", "create", *addresses, "--cluster-replicas", str(replicas), "--cluster-yes")
            self._wait_until_whole()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The URL of a node."""
        return f"redis+cluster://{self.nodes[0].address}"

    def command(self, *arguments: str) -> str:
        """Run redis-cli and give what it prints."""
        command = [str(program_of("redis-cli")), *arguments]
        run = run_guarded(command, capture_output=True, text=True, timeout=_SECONDS)
        if run.returncode:
            raise StandError(f"redis-cli {' '.join(arguments)}: {run.stdout[-500:]}{run.stderr[-500:]}")
        return str(run.stdout)

    def ask(self, node: Redis, *command: str) -> str:
        """Have one node do a command."""
        return self.command("-p", str(node.port), *command).strip()

    def reshard(self, source: Redis, target: Redis, slots: int) -> None:
        """Move slots with their keys from one primary to another."""
        self.command(
            *("--cluster", "reshard", source.address, "--cluster-from", self.ask(source, "CLUSTER", "MYID")),
            *("--cluster-to", self.ask(target, "CLUSTER", "MYID"), "--cluster-slots", str(slots), "--cluster-yes"),
        )

    def close(self) -> None:
        """End all servers."""
        self._running.close()

    def _node(self, options: Mapping[str, object]) -> Redis:
        """Start a node; its bus has a port of its own, 10,000 above, which may belong to somebody."""
        for attempt in range(_STARTS):
            try:
                return self._running.enter_context(Redis.start(options))
            except StandError:
                if attempt == _STARTS - 1:
                    raise
        raise AssertionError

    def _wait_until_whole(self) -> None:
        """Return when every node knows who has which slots, and replicas follow."""
        deadline = time.monotonic() + _SECONDS
        while not all(self._is_ready(node) for node in self.nodes):
            if time.monotonic() > deadline:
                raise StandError("the Redis Cluster does not come together")
            time.sleep(0.1)

    def _is_ready(self, node: Redis) -> bool:
        is_whole = "cluster_state:ok" in self.ask(node, "CLUSTER", "INFO")
        replication = self.ask(node, "INFO", "replication")
        return is_whole and ("role:master" in replication or "master_link_status:up" in replication)
