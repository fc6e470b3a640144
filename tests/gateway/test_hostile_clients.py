"""Clients that send nonsense, nothing, or never end: they are dropped, and nobody else notices."""

from __future__ import annotations

import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import reduce
from pathlib import Path
from typing import Any

import bson
import pytest
import structlog.testing
from bson import Code, Int64
from pymongo.database import Database

from gateway.running_gateway import RunningGateway
from gateway.test_many_watchers import resident_bytes
from gateway.wire_client import WireClient, element
from tailrace import raw
from tailrace.gateway import conversation
from tailrace.owned import GuardedProcess
from tailrace.stand import ReplicaSet
from waiting import SECONDS, wait_until

Document = dict[str, Any]


def is_dropped(port: int, data: bytes) -> bool:
    """Whether the gateway hangs up on who sends this."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as peer:
        try:
            peer.sendall(data)
            return peer.recv(1) == b""
        except ConnectionError:
            return True


def test_bad_frames_cost_only_their_sender(gateway: RunningGateway, database: Database[Document]) -> None:
    database.create_collection("c")
    bad = [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        struct.pack("<iiii", 1_000_000_000, 1, 0, 2013),
        struct.pack("<iiii", 17, 1, 0, 2013) + b"\x00",
        struct.pack("<iiii", 26, 1, 0, 2013) + b"\x00" * 10,
        struct.pack("<iiii", 30, 1, 0, 9999) + b"\x00" * 14,
    ]
    with gateway.client() as client, client[database.name].c.watch() as stream:
        for data in bad:
            assert is_dropped(gateway.port, data)
        database.c.insert_one({"_id": 1})
        assert next(stream)["documentKey"] == {"_id": 1}
    assert gateway.gateway.counts.dropped >= len(bad)


def test_a_client_that_says_half_a_word_or_nothing_is_dropped(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet
) -> None:
    gateway = start_gateway(mongodb.uri, seconds_for_a_message=0.3)
    assert is_dropped(gateway.port, b"")
    assert is_dropped(gateway.port, b"\x30\x00\x00")
    assert gateway.gateway.counts.dropped == 2


def test_idle_clients_stay_and_too_many_are_refused(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet
) -> None:
    gateway = start_gateway(mongodb.uri, max_connections=300)
    ping = bson.encode({"ping": 1, "$db": "admin"})
    frame = struct.pack("<iiiiIB", 21 + len(ping), 1, 0, 2013, 0, 0) + ping
    with ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port))) for _ in range(300)]
        for peer in (peers[0], peers[299]):
            peer.settimeout(SECONDS)
            peer.sendall(frame)
            assert peer.recv(4)
        assert is_dropped(gateway.port, b"")


def test_cursors_that_nobody_asks_for_time_out(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, database: Database[Document]
) -> None:
    gateway = start_gateway(mongodb.uri, cursor_timeout=0.2)
    with gateway.client() as client:
        command = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
        cursor = client[database.name].command(command)["cursor"]["id"]
        for _ in range(200):
            if gateway.gateway.cursors.get(cursor) is None:
                break
            client.admin.command("ping")
            time.sleep(0.05)
        assert gateway.gateway.cursors.get(cursor) is None
        wait_until(lambda: not gateway.hub.subscribers, "the stream of the cursor is closed")


@pytest.mark.long
def test_ten_thousand_idle_clients_cost_a_few_kilobytes_each(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, database: Database[Document]
) -> None:
    """The clients are another process. Seen: 5 kB each."""
    count = 10_000
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < count + 1_000:
        pytest.skip("too few files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    gateway = start_gateway(mongodb.uri, max_connections=count + 100)
    database.create_collection("c")
    with gateway.client() as client, client[database.name].c.watch() as stream:
        before = resident_bytes()
        command = [sys.executable, str(Path(__file__).with_name("idle_clients.py")), str(gateway.port), str(count)]
        with GuardedProcess(command, stdout=subprocess.PIPE) as clients:
            try:
                assert clients.stdout is not None
                assert clients.stdout.readline() == b"ready\n"
                assert gateway.gateway.counts.connections >= count
                assert (resident_bytes() - before) / count < 20_000
                database.c.insert_one({"_id": 1})
                assert next(stream)["documentKey"] == {"_id": 1}
                opened = database.client.admin.command("serverStatus")["connections"]["current"]
                assert opened < 100  # they have no connections upstream
            finally:
                clients.kill()
        deadline = time.monotonic() + 200
        while gateway.gateway.counts.connections > 10:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_message_that_trickles_in_is_late_all_the_same(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet
) -> None:
    gateway = start_gateway(mongodb.uri, seconds_for_a_message=0.3)
    ping = bson.encode({"ping": 1, "comment": "x" * 100, "$db": "admin"})
    frame = struct.pack("<iiiiIB", 21 + len(ping), 1, 0, 2013, 0, 0) + ping
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=120) as peer, suppress(ConnectionError):
        for byte in frame:
            peer.sendall(bytes([byte]))
            time.sleep(0.05)
        assert peer.recv(1) == b""
    assert gateway.gateway.counts.dropped == 1


def test_who_is_dropped_again_and_again_fills_no_log(gateway: RunningGateway) -> None:
    with structlog.testing.capture_logs() as lines:
        for _ in range(30):
            assert is_dropped(gateway.port, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    assert len([line for line in lines if line["event"] == "client_dropped"]) == 20


NOT_BSON: dict[str, bytes] = {
    "a string that is too long": raw.element(raw.STRING, b"x", b"\xff\x00\x00\x00ab\x00"),
    "a type that does not exist": raw.element(0x42, b"x", b""),
    "the same within a document": raw.element(raw.DOCUMENT, b"x", raw.document(raw.element(0x42, b"x", b""))),
    "a thousand levels": reduce(
        lambda inner, _: raw.element(raw.DOCUMENT, b"x", raw.document(inner)), range(1_000), b""
    ),
}


@pytest.mark.parametrize("name", ["ping", "killCursors", "hello"])
def test_what_is_no_bson_has_the_servers_code_and_the_connection_stays(
    gateway: RunningGateway, mongodb: ReplicaSet, name: str
) -> None:
    """Whether the server reads a command or the gateway does."""
    for what, bad in NOT_BSON.items():
        told = []
        for port in (gateway.port, mongodb.primary.port):
            with WireClient(port) as client:
                fields = element(name, 1), element("cursors", [Int64(1)]), bad, element("$db", "admin")
                refused = client.fields(*fields)
                assert client.command({"ping": 1, "$db": "admin"})["ok"] == 1
                told.append((refused["ok"], refused["code"], refused["codeName"]))
        assert told[0] == told[1], what


def test_a_defect_fails_its_command_alone_and_fills_no_log(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setitem(conversation._OF_SESSIONS, "killCursors", fail)
    with WireClient(gateway.port) as client, structlog.testing.capture_logs() as lines:
        for _ in range(30):
            assert client.command({"killCursors": "c", "cursors": [], "$db": "test"})["code"] == 1
        assert client.command({"ping": 1, "$db": "admin"}) == {"ok": 1}
    assert gateway.gateway.counts.failed == 30
    told = [line for line in lines if line["event"] == "command_failed"]
    assert len(told) == 20
    assert all("RuntimeError: a defect at test_hostile_clients.py" in line["reason"] for line in told)
    assert not any("exc_info" in line for line in told)
    assert "Traceback" not in "".join(capfd.readouterr())


NONSENSE: list[Document] = [
    {"getMore": "x", "collection": "c"},
    {"getMore": None, "collection": 5},
    {"getMore": Int64(1), "collection": "c", "maxTimeMS": "soon"},
    {"killCursors": "c", "cursors": 5},
    {"killCursors": "c", "cursors": ["x"]},
    {"killCursors": 5, "cursors": [[]]},
    {"endSessions": 5},
    {"endSessions": [None]},
    {"killAllSessions": [5]},
    {"killAllSessionsByPattern": {"a": 1}},
    {"aggregate": "c", "pipeline": [{"$changeStream": 5}], "cursor": {}},
    {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": float("nan")}},
    {"hello": 1, "client": 5},
    {"hello": 1, "client": {"application": 5}},
    {"hello": 1, "compression": 5},
    {"hello": 1, "compression": [Code("x")]},
    {"isMaster": 1, "speculativeAuthenticate": 5},
    {"saslStart": 1, "mechanism": 5},
    {"saslContinue": "x"},
    {"configureFailPoint": 5},
    {"configureFailPoint": "failCommand", "mode": [], "data": 5},
    {"configureFailPoint": "failCommand", "mode": {"times": "x"}, "data": {}},
]


def test_nonsense_in_commands_is_answered_and_the_connection_stays(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback in the log, and each answer is an error or none, as the server would give."""
    gateway = start_gateway(mongodb.uri)
    with WireClient(gateway.port) as client:
        for command in NONSENSE:
            assert "ok" in client.command({**command, "$db": "test"}), command
            assert client.command({"ping": 1, "$db": "admin"}) == {"ok": 1}
        client.command({"configureFailPoint": "failCommand", "mode": "off", "$db": "admin"})
    assert gateway.gateway.counts.failed == 0
    written = capsys.readouterr()
    assert "Traceback" not in written.out + written.err
