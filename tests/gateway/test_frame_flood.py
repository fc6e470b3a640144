"""A million mutated frames, authenticated and not, and what watchers of the same gateway notice of them.

`make fuzz-gateway FRAMES=1000000 SEED=1` runs it. Two gateways stand before one server, each with a watcher that sees
every document it inserts. The attackers take turns at the gateways. So there is at any time one watcher whose gateway
is flooded and one whose gateway is not, on the same machine with the same load: what the second one sees is normal, and
the first one may see no more. There are two such pairs, before a server with authentication and before one without, and
the attackers go from one pair to the other. At both, half of them log in. Gateways, attackers and the servers are
processes of their own; attackers, who would be on another machine, are the last to get a processor.

What is demanded was written down before the figures were known:

- no event is lost, none comes twice or late in the order;
- of each pair, the flooded p99 is the other one's over the same seconds; two p99 of the same thing differ too, so that
  up to `P99_RATIO` times as much passes;
- in the second half of the frames no gateway's memory grows by more than `GROWTH` bytes;
- the log grows with time, by the rate it is limited to, and not with the frames.

With REPORT=FILE the figures are written there, as a page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo import MongoClient

from gateway import attackers
from gateway.gateway_process import GatewayProcess
from tailrace.owned import GuardedProcess
from tailrace.stand import ReplicaSet
from waiting import SECONDS as LIMIT
from waiting import wait_until

FRAMES: Final = int(os.environ.get("FRAMES", "1000000"))
SEED: Final = int(os.environ.get("SEED", "1"))
MINUTES: Final = float(os.environ.get("MINUTES", "inf"))
"""After so long it ends, with as many frames as there were by then; the page says how many."""
SECONDS: Final = 60.0
"""How long each turn is."""
P99_RATIO: Final = 1.2
GROWTH: Final = 4_000_000
LOG_PER_SECOND: Final = 2_000
"""Some kinds of lines, each twenty times in ten seconds, of 200 bytes or less."""
SETTINGS: Final = {
    "streams_per_user": 20, "cursor_timeout_seconds": 2.0, "access_log": False, "login_attempts": 0
}  # fmt: skip
RING: Final = 60 * 1024 * 1024
"""Of the 64 MB that a gateway holds of the oplog by default, what is filled before the flood, so as not to hide it."""
FLOODED, SPARED = "its own gateway is flooded", "the other gateway is flooded"
TESTS: Final = Path(__file__).parents[1]


class Watched:
    """A gateway and its watcher, who inserts a document, waits for its event, and inserts the next."""

    def __init__(self, stack: ExitStack, upstream: ReplicaSet, user: str, log: Path) -> None:
        self.gateway = stack.enter_context(closing(GatewayProcess(upstream.uri, log, **SETTINGS)))
        self.memory: list[int] = []
        self.delays: dict[str, list[float]] = {FLOODED: [], SPARED: []}
        self._written = stack.enter_context(upstream.client()).pub[log.stem]
        self._written.insert_one({})
        uri = f"mongodb://{user}127.0.0.1:{self.gateway.port}/"
        client: MongoClient[dict[str, Any]] = stack.enter_context(MongoClient(uri, serverSelectionTimeoutMS=60_000))
        self._stream = client.pub[log.stem].watch()
        self._count = 0

    def watch(self, seconds: float, condition: str) -> None:
        """See each document once, and in order; `condition` is what goes on meanwhile."""
        end = time.monotonic() + seconds
        while (begun := time.monotonic()) < end:
            self._written.insert_one({"n": self._count})
            event = next(self._stream)
            assert event["fullDocument"]["n"] == self._count
            self.delays[condition].append(time.monotonic() - begun)
            self._count += 1
            time.sleep(0.01)


class Pair:
    """Two gateways before one server."""

    def __init__(self, stack: ExitStack, upstream: ReplicaSet, name: str, user: str, folder: Path) -> None:
        self.name = name
        self.kind = "" if user else "open"
        self.both = [Watched(stack, upstream, user, folder / f"{side} {name}.log") for side in ("left", "right")]
        with upstream.client() as client:
            while any(each.gateway.metrics("tailrace_hub_")["ring_bytes"] < RING for each in self.both):
                self._fill(client)

    def _fill(self, client: MongoClient[dict[str, Any]]) -> None:
        """Write some more into the oplog, and wait until it was read: much at once would leave memory that is free."""

        def read() -> int:
            return int(min(each.gateway.metrics("tailrace_hub_")["entries_total"] for each in self.both))

        before = read()
        client.pub.filler.insert_many([{"n": number} for number in range(10_000)])
        wait_until(lambda: read() >= before + 10_000)

    def delay(self, condition: str, part: float) -> float:
        """A percentile of what both have seen, in milliseconds."""
        seen = sorted(delay for each in self.both for delay in each.delays[condition])
        return seen[int(len(seen) * part)] * 1000

    @property
    def state(self) -> str:
        memory = ", ".join(f"{each.memory[-1] / 1e6:.1f}" for each in self.both if each.memory)
        p99 = ", ".join(f"{self.delay(name, 0.99):.1f}" for name in (FLOODED, SPARED))
        return f"{self.name} {memory} MB, p99 {p99} ms"

    @property
    def table(self) -> str:
        """Its figures, as the page has them."""
        parts = (0.5, 0.9, 0.99, 0.999, 0.999999)
        rows = [
            f"| {condition} | {sum(len(each.delays[condition]) for each in self.both):,} | "
            + " | ".join(f"{self.delay(condition, part):.1f}" for part in parts)
            + " |"
            for condition in (SPARED, FLOODED)
        ]
        ratios = " | ".join(f"{self.delay(FLOODED, part) / self.delay(SPARED, part):.2f}" for part in parts)
        grown = ", ".join(f"{_growth(each) / 1e6:+.1f}" for each in self.both)
        reached = ", ".join(f"{each.memory[-1] / 1e6:.0f}" for each in self.both)
        return f"""## {self.name}

| of this watcher | events | p50 | p90 | p99 | p99.9 | longest |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}
| ratio | | {ratios} |

From the middle of the run to its end the gateways' memory changed by {grown} MB (to {reached} MB).
"""


@contextmanager
def attacked(port: int, seed: int, *kind: str) -> Iterator[dict[str, int]]:
    """Have what listens at a port attacked during the block; what became of the frames is known after it."""
    became: dict[str, int] = {}
    process: GuardedProcess[Any] = GuardedProcess(
        [sys.executable, attackers.__file__, str(port), str(seed), *kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "attacking\n"
        yield became
        became |= json.loads(process.communicate(timeout=LIMIT)[0])
    finally:
        process.kill()
        process.wait(LIMIT)


def _watch_both(flooded: Watched, spared: Watched) -> None:
    """Let both watch at the same time; whatever one of them misses fails the test."""
    failed: list[BaseException] = []

    def watch(watched: Watched, condition: str) -> None:
        try:
            watched.watch(SECONDS, condition)
        except BaseException as error:
            failed.append(error)

    beside = threading.Thread(target=watch, args=(spared, SPARED), daemon=True)
    beside.start()
    watch(flooded, FLOODED)
    beside.join(SECONDS + 60)
    assert not beside.is_alive()
    if failed:
        raise failed[0]


@pytest.mark.long
@pytest.mark.timeout(14_400)
def test_a_flood_of_mutated_frames_is_hardly_noticed_by_a_watcher(
    secured: ReplicaSet, mongodb: ReplicaSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mongodb.add_user("ann", "secret", [{"role": "read", "db": "pub"}])
    began = time.monotonic()
    with ExitStack() as stack:
        pairs = [
            Pair(stack, secured, "With authentication", "ben:secret@", tmp_path),
            Pair(stack, mongodb, "Without authentication", "", tmp_path),
        ]
        became, turn, frames = dict.fromkeys(("answered", "hung_up", "stuck", "alive", "died"), 0), 0, 0
        while turn < 4 or turn % 4 or (frames < FRAMES and time.monotonic() - began < MINUTES * 60):
            pair = pairs[turn // 2 % 2]
            flooded, spared = pair.both if turn % 2 == 0 else pair.both[::-1]
            with attacked(flooded.gateway.port, SEED * 10_000 + turn, pair.kind) as counts:
                _watch_both(flooded, spared)
            turn += 1
            became = {key: became[key] + counts[key] for key in became}
            _wait_until_all_have_gone(flooded.gateway)
            flooded.memory.append(flooded.gateway.resident_bytes)
            frames = became["answered"] + became["hung_up"]  # those of the watchers are not among them
            with capsys.disabled():
                print(f"\n{time.strftime('%H:%M:%S')} {frames:,} frames, {pair.state}", end="", flush=True)
        all_four = [each for pair in pairs for each in pair.both]
        numbers = [each.gateway.metrics() for each in all_four]
        logs = [each.gateway.log.read_text() for each in all_four]
        page = _page(frames, became, pairs, max(map(len, logs)), time.monotonic() - began)
        with capsys.disabled():
            print(f"\n{page}\n{numbers}")
        if "REPORT" in os.environ:
            Path(os.environ["REPORT"]).write_text(page)
    assert (became["alive"], became["died"]) == (0, 0)
    assert [each["failed_commands_total"] for each in numbers] == [0] * 4
    assert not any("Traceback" in log for log in logs)
    assert max(map(len, logs)) < 50_000 + LOG_PER_SECOND * (time.monotonic() - began)
    assert [_growth(each) for each in all_four if _growth(each) > GROWTH] == []
    assert [pair.name for pair in pairs if pair.delay(FLOODED, 0.99) >= P99_RATIO * pair.delay(SPARED, 0.99)] == []


def _growth(watched: Watched) -> int:
    """How much memory grew from the middle of the run to its end."""
    return watched.memory[-1] - watched.memory[len(watched.memory) // 2]


def _page(frames: int, became: dict[str, int], pairs: list[Pair], log: int, seconds: float) -> str:
    """The figures, as a page of the documentation."""
    return f"""# A gateway under a flood

`make fuzz-gateway SEED={SEED} REPORT=docs/gateway-flood.md` has sent {frames:,} mutated frames to four gateways in
{seconds / 60:.0f} minutes, two before a server with authentication and two before one without, and written this page.
Eight attackers, half of them with a password, send as fast as they are answered, and take turns at the gateways:
{became["answered"]:,} frames were answered, {became["hung_up"]:,} ended a connection. Each gateway has a watcher, who
inserts a document, waits for its event, and inserts the next. So there is always one whose gateway is flooded and one
whose gateway is not, before the same server and on the same machine at the same time. No watcher lost an event. The
longest log has {log:,} bytes.

Milliseconds from the insert to the event:

{chr(10).join(pair.table for pair in pairs)}
The run fails when a flooded p99 is {P99_RATIO:g} times the other one or more, when the memory of a gateway grows by
{GROWTH / 1e6:g} MB in the second half, or when a log grows by more than {LOG_PER_SECOND:,} bytes a second. Who comes
first: [security](security.md#fairness).
"""


def _wait_until_all_have_gone(gateway: GatewayProcess) -> None:
    """Only the watcher's own connections stay."""
    deadline = time.monotonic() + 200
    while gateway.metrics()["connections"] > 4:
        assert time.monotonic() < deadline, gateway.metrics()
        time.sleep(0.5)
