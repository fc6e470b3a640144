"""Delivery: what one event costs that is delivered to one of many watchers, on the server itself and by a gateway.

Both are measured with watchers whom nobody asks who they are, and with watchers who log in as one user: a gateway then
has the server judge the privileges at each getMore.

Some documents are inserted, all watchers get them, and only then come the next: however busy the machine is, each
reply has the same events in it, so that CPU times of two runs can be compared.

python -m bench.delivery [--mode quick]
"""

from __future__ import annotations

import time
from typing import Any, Final

from bench.accounting import Meter, cpu_seconds
from bench.contestant import ContestantFailed, LineProcess
from bench.drain import ON_GATEWAY, ON_SERVER
from bench.scenario import Claim, Scenario, main
from bench.watchers import Watchers
from tailrace.stand import ReplicaSet

NAME = "delivery"
TITLE = "CPU for each event that is delivered to one of many watchers"
SIZES = {
    "tiny": {"rounds": 1, "watchers": [3], "turns": 3, "at_once": 10},
    "quick": {"watchers": [1, 200], "turns": 20, "at_once": 10},
    "full": {"watchers": [1, 50, 200, 500], "turns": 50, "at_once": 10},
}
USERS_ON_SERVER, USERS_ON_GATEWAY = f"{ON_SERVER}, users", f"{ON_GATEWAY}, users"
_USER: Final = ("watcher", "secret")
_PADDING: Final = "x" * 200
_SECONDS: Final = 120.0


class InTurns(Watchers):
    """So many watchers, who all have each document before the next ones are written."""

    def __init__(
        self, name: str, upstream: ReplicaSet, count: int, scenario: Scenario, user: tuple[str, ...] = ()
    ) -> None:
        super().__init__(name, upstream, count, 0, by_gateway=name in (ON_GATEWAY, USERS_ON_GATEWAY), user=user)
        self._turns = scenario["turns"]
        self._at_once = scenario["at_once"]
        self._each = count

    def measure(self, players: LineProcess) -> dict[str, float]:
        """CPU of whatever delivers, for each event and watcher: of the server, and of the gateway if there is one."""
        server, gateway = self.processes
        with self._upstream.client() as client:
            self._turn(client.bench.watched, players)  # all stand at the same place, and everything was done once
            used, own = cpu_seconds(server), sum(map(cpu_seconds, gateway))
            for _ in range(self._turns):
                self._turn(client.bench.watched, players)
        delivered = self._turns * self._at_once * self._each
        mongod = (cpu_seconds(server) - used) / delivered * 1e6
        tool = (sum(map(cpu_seconds, gateway)) - own) / delivered * 1e6
        return {"tool_us": tool + mongod, "mongod_us": mongod}

    def _turn(self, collection: Any, players: LineProcess) -> None:
        wanted = self._count_of(players) + self._at_once * self._each
        collection.insert_many([{"padding": _PADDING} for _ in range(self._at_once)])
        deadline = time.monotonic() + _SECONDS
        while self._count_of(players) < wanted:
            if time.monotonic() > deadline:
                raise ContestantFailed("events were not delivered")
            time.sleep(0.01)

    @staticmethod
    def _count_of(players: LineProcess) -> int:
        players.tell("count")
        return int(players.wait_for("delivered", 30))


def body(scenario: Scenario) -> None:
    """The same number of watchers on the server and on a gateway."""
    scenario.note("`tool` is the CPU of server and gateway together, for one event at one watcher")
    with ReplicaSet.start("6.0.5") as replica_set, ReplicaSet.start("6.0.5", auth=True) as secured:
        secured.add_user(*_USER, [{"role": "read", "db": "bench"}])
        for each in (replica_set, secured):
            with each.client() as client:
                client.bench.create_collection("watched")
        for count in scenario["watchers"]:
            sides = [InTurns(name, replica_set, count, scenario) for name in (ON_SERVER, ON_GATEWAY)]
            sides += [InTurns(name, secured, count, scenario, _USER) for name in (USERS_ON_SERVER, USERS_ON_GATEWAY)]
            with scenario.contestants(sides, group="delivery") as started:
                scenario.interleave(started, Meter({}), group="delivery", x=count)
            for ours, theirs in ((ON_GATEWAY, ON_SERVER), (USERS_ON_GATEWAY, USERS_ON_SERVER)):
                for metric in ("tool_us", "mongod_us"):
                    scenario.claims.append(Claim(ours, theirs, metric, group="delivery", x=count))


if __name__ == "__main__":
    main(NAME, TITLE, SIZES, body)
