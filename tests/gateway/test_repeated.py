"""A getMore in the same bytes as the last one is not parsed again; whoever asks, and may ask, is still looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import bson
import pytest
from bson import Binary, Int64, Timestamp

from gateway.running_gateway import RunningGateway
from gateway.wire_client import WireClient
from tailrace.engine import Dialect
from tailrace.gateway.change_streams import ChangeStreamCommands
from tailrace.gateway.command import Command
from tailrace.gateway.identity import NOBODY
from tailrace.gateway.repeated import RepeatedGetMore
from tailrace.gateway.wire import Message
from tailrace.stand import ReplicaSet

OPEN = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "pub"}


def _get_more(time: int, key: int = 5, hash: bytes = b"h" * 20) -> bytes:
    return bson.encode(
        {
            "getMore": Int64(17), "collection": "c", "maxTimeMS": 500, "lsid": {"id": Binary(bytes(16), 4)},
            "$clusterTime": {
                "clusterTime": Timestamp(time, 1), "signature": {"hash": hash, "keyId": Int64(key)},
            },
            "$db": "pub",
        }
    )  # fmt: skip


def _last(body: bytes) -> RepeatedGetMore:
    command = Command.parse(Message(body), Dialect.of("6.0.5"))
    cursor: Any = None
    return RepeatedGetMore.of(command, cursor, NOBODY, None, 1.0)


def test_only_the_values_of_the_cluster_time_may_differ() -> None:
    body = _get_more(1)
    last = _last(body)
    assert last.fits(Message(_get_more(99, 7, b"x" * 20)))
    values = body.index(b"clusterTime\x00", body.index(b"clusterTime\x00") + 1) + 12
    may_differ = set(range(values, values + 8))
    for name, size in ((b"hash\x00", 5), (b"keyId\x00", 0)):
        begin = body.index(name) + len(name) + size
        may_differ |= set(range(begin, begin + (20 if size else 8)))
    for place in range(len(body)):
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        assert last.fits(Message(changed)) is (place in may_differ), place
    assert not last.fits(Message(body, sequences=(b"x",)))
    assert not last.fits(Message(body, legacy_database="pub"))
    assert not last.fits(Message(body + b"x"))


def test_without_a_usual_cluster_time_all_bytes_are_the_same() -> None:
    body = _get_more(1, hash=b"short")
    assert _last(body).fits(Message(body))
    assert not _last(body).fits(Message(_get_more(2, hash=b"short")))


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RepeatedGetMore]]:
    """Those that were answered without being parsed."""
    seen: list[RepeatedGetMore] = []
    original = ChangeStreamCommands.get_more_again

    async def counting(self: ChangeStreamCommands, last: RepeatedGetMore) -> Any:
        seen.append(last)
        return await original(self, last)

    monkeypatch.setattr(ChangeStreamCommands, "get_more_again", counting)
    return seen


def test_the_same_bytes_mean_nothing_after_a_logout_or_a_kill(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway], again: list[RepeatedGetMore]
) -> None:
    gateway = start_gateway(secured.uri)
    with WireClient(gateway.port) as client, WireClient(gateway.port) as other, secured.client() as root:
        for each in (client, other):
            each.authenticate("ann", "secret")
        cursor = client.command(OPEN)["cursor"]["id"]
        more = {"getMore": Int64(cursor), "collection": "c", "maxTimeMS": 50, "$db": "pub"}
        assert client.command(more)["ok"] == 1
        root.pub.c.insert_one({"n": 1})
        seen: list[Any] = []
        while not seen:
            seen += client.command(more)["cursor"]["nextBatch"]
        assert [event["fullDocument"]["n"] for event in seen] == [1]
        assert again
        assert client.command({"logout": 1, "$db": "admin"})["ok"] == 1
        assert client.command(more)["code"] == 13
        assert other.command(more)["ok"] == other.command(more)["ok"] == 1
        assert other.command({"killCursors": "c", "cursors": [Int64(cursor)], "$db": "pub"})["ok"] == 1
        assert other.command(more)["code"] == 43


def test_a_cursor_that_another_connection_kills_is_gone_for_the_same_bytes(
    gateway: RunningGateway, again: list[RepeatedGetMore]
) -> None:
    with WireClient(gateway.port) as client, WireClient(gateway.port) as other:
        cursor = client.command(OPEN)["cursor"]["id"]
        more = {"getMore": Int64(cursor), "collection": "c", "maxTimeMS": 10, "$db": "pub"}
        assert [client.command(more)["ok"] for _ in range(3)] == [1] * 3
        assert len(again) == 2
        assert other.command({"killCursors": "c", "cursors": [Int64(cursor)], "$db": "pub"})["ok"] == 1
        assert client.command(more)["code"] == 43
