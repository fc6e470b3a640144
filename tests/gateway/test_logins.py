"""Who somebody is and what that is worth: revoked privileges, restrictions, guesses, and an upstream that changes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import bson
import pytest
from pymongo.errors import OperationFailure

from gateway.running_gateway import RunningGateway
from gateway.test_ownership import open_stream, read_on
from gateway.wire_client import WireClient
from tailrace.gateway.identity import Identity
from tailrace.gateway.limits import LoginAttempts
from tailrace.gateway.privileges import UserPrivileges
from tailrace.gateway.wire import MORE_TO_COME
from tailrace.stand import ReplicaSet

Document = dict[str, Any]
READER = {"role": "read", "db": "pub"}
NOT_ASKED = {"failCommands": ["usersInfo"], "errorCode": 10107}
WATCHER = {"resource": {"db": "pub", "collection": ""}, "actions": ["find", "changeStream"]}


def test_the_next_get_more_after_a_revocation_is_refused_as_by_the_server(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    gateway = start_gateway(secured.uri)
    command = secured.primary.command
    told: dict[str, list[list[Document]]] = {}
    for where, port in {"gateway": gateway.port, "server": secured.primary.port}.items():
        command({"createRole": f"watcher-{where}", "privileges": [WATCHER], "roles": []})
        for user, roles in {"revoked": [READER], "dropped": [READER], "made-again": [READER]}.items():
            command({"createUser": f"{user}-{where}", "pwd": "secret", "roles": roles})
        command({"createUser": f"narrowed-{where}", "pwd": "secret", "roles": [f"watcher-{where}"]})
        changes: dict[str, list[Document]] = {
            "revoked": [{"revokeRolesFromUser": f"revoked-{where}", "roles": [READER]}],
            "narrowed": [{"revokePrivilegesFromRole": f"watcher-{where}", "privileges": [WATCHER]}],
            "dropped": [{"dropUser": f"dropped-{where}"}],
            "made-again": [
                {"dropUser": f"made-again-{where}"},
                {"createUser": f"made-again-{where}", "pwd": "other", "roles": [READER]},
            ],
        }
        for user, commands in changes.items():
            with WireClient(port) as client, WireClient(port) as beside:
                client.authenticate(f"{user}-{where}", "secret")
                beside.authenticate("ann", "secret")
                cursor, other = open_stream(client), open_stream(beside)
                answers = [read_on(client, cursor)]
                for each in commands:
                    command(each)
                if user == "made-again":  # others with the same name do not speak for those who are gone
                    with WireClient(port) as new:
                        new.authenticate(f"made-again-{where}", "other")
                        read_on(new, open_stream(new))
                answers += [read_on(client, cursor), read_on(beside, other)]
                told.setdefault(user, []).append(answers)
    for user, (through, direct) in told.items():
        assert through == direct, user
        assert [answer.get("code") for answer in through] == [None, "13", None], user


def test_one_question_serves_all_who_wait_and_none_who_came_later() -> None:
    asked: list[int] = []

    async def run() -> None:
        shared = UserPrivileges(0)
        proceed = asyncio.Event()

        async def ask() -> bytes:
            asked.append(len(asked))
            number = len(asked)
            await proceed.wait()
            return b"%d" % number

        first = asyncio.create_task(shared.now(ask))
        await asyncio.sleep(0)
        later = [asyncio.create_task(shared.now(ask)) for _ in range(50)]
        await asyncio.sleep(0)
        later[0].cancel()  # who would have asked for them all leaves
        proceed.set()
        assert await first == b"1"
        assert {await each for each in later[1:]} == {b"2"}
        assert await shared.now(ask) == b"3"

    asyncio.run(run())
    assert len(asked) == 3


def test_many_streams_of_one_user_ask_together(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    """A user without privileges left loses all streams; others of the same gateway go on."""
    gateway = start_gateway(secured.uri)
    secured.add_user("many", "secret", [READER])
    clients = [WireClient(gateway.port) for _ in range(8)]
    try:
        for client in clients:
            client.authenticate("many", "secret")
        cursors = [open_stream(client) for client in clients]
        secured.primary.command({"revokeRolesFromUser": "many", "roles": [READER]})
        for client, cursor in zip(clients, cursors, strict=True):
            client.send({"getMore": cursor, "collection": "c", "maxTimeMS": 1, "$db": "pub"})
        assert [client.reply()["code"] for client in clients] == [13] * 8
    finally:
        for client in clients:
            client.socket.close()


# --- from where


def test_client_source_restrictions_hold_for_the_clients_own_address(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    """The server checks the gateway's address, 127.0.0.1; the client comes from 127.0.0.2 and is refused here."""
    gateway = start_gateway(secured.uri, address="0.0.0.0")
    only_here = [{"clientSource": ["127.0.0.1"]}]
    command = secured.primary.command
    command({"createRole": "here", "privileges": [], "roles": [], "authenticationRestrictions": only_here})
    command({"createUser": "by-role", "pwd": "secret", "roles": ["here", READER]})
    command({"createUser": "by-user", "pwd": "secret", "roles": [READER], "authenticationRestrictions": only_here})
    for user in ("by-user", "by-role"):
        with WireClient(gateway.port) as client:
            client.authenticate(user, "secret")
            open_stream(client)
        with WireClient(gateway.port, source="127.0.0.2") as client:
            with pytest.raises(AssertionError, match="Authentication failed"):
                client.authenticate(user, "secret")
            with pytest.raises(ConnectionError):
                client.command({"find": "c", "$db": "pub"})
    assert gateway.gateway.counts.refused == 2


def test_who_cannot_be_asked_about_is_not_let_in(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    """Without the server's word from where a user may come, nothing is passed on."""
    gateway = start_gateway(secured.uri, address="0.0.0.0")
    command = secured.primary.command
    only_here = [{"clientSource": ["127.0.0.1"]}]
    command({"createUser": "asked", "pwd": "secret", "roles": [READER], "authenticationRestrictions": only_here})
    command({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": NOT_ASKED})
    try:
        with WireClient(gateway.port, source="127.0.0.2") as client, pytest.raises(ConnectionError):
            client.authenticate("asked", "secret")
    finally:
        command({"configureFailPoint": "failCommand", "mode": "off"})


@pytest.mark.parametrize(
    ("groups", "address", "may"),
    [
        ((), "10.1.2.3", True),
        (({"clientSource": ["10.0.0.0/8"]},), "10.1.2.3", True),
        (({"clientSource": ["192.168.1.1", "::1"]},), "10.1.2.3", False),
        (({"clientSource": ["192.168.1.1"]}, {"serverAddress": ["10.0.0.1"]}), "10.1.2.3", True),
    ],
)
def test_one_of_each_group_of_restrictions_must_be_met(groups: Any, address: str, may: bool) -> None:
    assert Identity(restrictions=(groups,) if groups else ()).may_come_from(address) is may
    never = ({"clientSource": ["203.0.113.9"]},)
    assert not Identity(restrictions=(groups, never) if groups else (never,)).may_come_from(address)


# --- how often


def test_who_guesses_passwords_has_to_wait(secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway(secured.uri, login_attempts=3)
    for _ in range(3):
        with (
            pytest.raises(OperationFailure) as caught,
            gateway.client(username="ann", password="wrong") as guesser,
        ):
            guesser.pub.command("ping")
        assert caught.value.code == 18
        assert "too many" not in str(caught.value)
    with pytest.raises(OperationFailure, match="too many failed logins") as caught:
        gateway.client(username="ann", password="secret").pub.command("ping")
    assert caught.value.code == 18
    with gateway.client(username="ben", password="secret") as other:
        assert other.pub.command("ping")["ok"] == 1
    assert gateway.gateway.counts.failed_logins == 3
    assert gateway.gateway.counts.refused >= 1


def test_guesses_that_want_no_answer_count(secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]) -> None:
    """`connectionStatus` tells who guessed right, without an answer to the guess."""
    gateway = start_gateway(secured.uri, login_attempts=3)
    for _ in range(3):
        with WireClient(gateway.port) as guesser:
            guess = guesser.begin_login("ann", "wrong", options={"skipEmptyExchange": True})
            guesser.send_frame(struct.pack("<I", MORE_TO_COME) + b"\x00" + bson.encode(guess))
            status = guesser.command({"connectionStatus": 1, "$db": "admin"})
            assert status["authInfo"]["authenticatedUsers"] == []
    assert gateway.gateway.counts.failed_logins == 3
    with WireClient(gateway.port) as guesser, pytest.raises(AssertionError, match="too many failed logins"):
        guesser.begin_login("ann", "secret")


def test_guesses_that_are_begun_before_the_others_failed_count(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    gateway = start_gateway(secured.uri, login_attempts=2)
    with ExitStack() as opened:
        guessers = [opened.enter_context(WireClient(gateway.port)) for _ in range(5)]
        guesses = [guesser.begin_login("ann", "wrong") for guesser in guessers]
        told = [guesser.command(guess)["errmsg"] for guesser, guess in zip(guessers, guesses, strict=True)]
    assert ["too many" in each for each in told] == [False, False, True, True, True]
    assert gateway.gateway.counts.failed_logins == 2


def test_names_count_however_they_are_sent(secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]) -> None:
    """Servers take the first message in base64 too. A right password forgives no guesses at others' passwords."""
    gateway = start_gateway(secured.uri, login_attempts=2)
    for _ in range(2):
        with WireClient(gateway.port) as guesser:
            assert guesser.command(guesser.begin_login("ann", "wrong", in_base64=True))["code"] == 18
        with WireClient(gateway.port) as own:
            assert own.command(own.begin_login("ben", "secret", in_base64=True))["ok"] == 1
    for in_base64 in (False, True):
        with WireClient(gateway.port) as guesser, pytest.raises(AssertionError, match="too many failed logins"):
            guesser.begin_login("ann", "secret", in_base64=in_base64)
    attempts = gateway.gateway.logins
    attempts.succeeded("127.0.0.1", "")  # as one whose name nobody could read
    assert attempts._failures["127.0.0.1", ""].count == 2


@pytest.mark.parametrize("name", ["saslStart", "hello"])
def test_a_login_that_the_server_does_not_begin_changes_no_name(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway], name: str
) -> None:
    """Seen on 6.0.5: a malformed command leaves the login before it as it was, to be guessed at under another name."""
    gateway = start_gateway(secured.uri, login_attempts=2)
    start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"n,,n=host,r=" + b"x" * 24}
    malformed = {
        "saslStart": {**start, "unknown": 1, "$db": "admin"},
        "hello": {"hello": 1, "client": 5, "speculativeAuthenticate": {**start, "db": "admin"}, "$db": "admin"},
    }[name]
    for _ in range(2):
        with WireClient(gateway.port) as guesser:
            guess = guesser.begin_login("ann", "wrong")
            assert guesser.command(malformed)["ok"] == 0
            assert guesser.command(guess)["code"] == 18
    assert {user for _, user in gateway.gateway.logins._failures} == {"", "ann@admin"}
    with WireClient(gateway.port) as guesser, pytest.raises(AssertionError, match="too many failed logins"):
        guesser.begin_login("ann", "secret")
    with WireClient(gateway.port) as host:
        host.authenticate("host", "secret")


def test_the_pause_after_failed_logins_doubles_and_ends_with_a_right_one() -> None:
    now = [1_000.0]
    logins = LoginAttempts(3, clock=lambda: now[0])
    pauses = []
    for _ in range(12):
        logins.failed("10.0.0.1", "ann")
        pauses.append(logins.seconds_to_wait("10.0.0.1", "ann"))
    assert pauses == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert logins.seconds_to_wait("10.0.0.2", "ann") == 0  # nobody locks out a user from elsewhere
    assert logins.seconds_to_wait("10.0.0.1", "ben") == 0
    now[0] += 61
    assert logins.seconds_to_wait("10.0.0.1", "ann") == 0
    logins.succeeded("10.0.0.1", "ann")
    logins.failed("10.0.0.1", "ann")
    assert logins.seconds_to_wait("10.0.0.1", "ann") == 0
    for guess in range(20):
        logins.failed("10.0.0.1", f"user {guess}")
    assert logins.seconds_to_wait("10.0.0.1", "ben") > 0


def test_failures_that_are_remembered_are_bounded() -> None:
    logins = LoginAttempts(1)
    for number in range(20_000):
        logins.failed(f"10.{number >> 8}.{number & 255}.1", "ann")
    assert len(logins._failures) <= 10_000


def test_the_same_privileges_in_another_order_cost_the_server_nothing(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    """A server lists them in another order on another connection, and one connection of a user asks for all."""
    secured.add_user("two", "secret", [{"role": "read", "db": "pub"}, {"role": "readWrite", "db": "other"}])
    gateway = start_gateway(secured.uri)
    with secured.client() as root, ExitStack() as opened:
        clients = [opened.enter_context(WireClient(gateway.port)) for _ in range(10)]
        for client in clients:
            client.authenticate("two", "secret")
        cursors = [open_stream(client) for client in clients]

        def opened_upstream() -> int:
            return int(root.admin.command("serverStatus")["metrics"]["commands"]["aggregate"]["total"])

        before = opened_upstream()
        for _ in range(5):
            for client, cursor in zip(clients, cursors, strict=True):
                client.send({"getMore": cursor, "collection": "c", "maxTimeMS": 1, "$db": "pub"})
            assert all(client.reply()["ok"] == 1 for client in clients)
        assert opened_upstream() == before
