"""An upstream whose access control changes, or cannot be spoken for: nobody gets more than the server itself gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from gateway.running_gateway import RunningGateway
from gateway.wire_client import WireClient
from tailrace.errors import SettingsError
from tailrace.stand import ReplicaSet
from tailrace.stand.node import Access, Node

Document = dict[str, Any]


def restart_with(node: Node, *, add: tuple[str, ...] = (), remove: tuple[str, ...] = ()) -> None:
    """Start a node again with another command line, without waiting for it."""
    node.stop()
    command = node._process._command
    command[:] = [part for part in command if part not in remove] + list(add)
    node.launch()


def insert_when_there_are_keys(collection: Collection[Document], document: Document) -> None:
    """Insert by a client that heard cluster times before they were signed: a server without keys yet says so (211)."""
    deadline = time.monotonic() + 200
    while True:
        try:
            collection.insert_one(document)
        except OperationFailure as error:
            if error.code != 211 or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def answer_of(port: int, command: Document) -> Document:
    """Ask until there is an answer: while the upstream starts again, the gateway hangs up."""
    deadline = time.monotonic() + 120
    while True:
        try:
            with WireClient(port) as client:
                return client.command(command)
        except ConnectionResetError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_authentication_that_is_switched_on_upstream_counts_at_once(
    start_mongodb: Callable[..., ReplicaSet], start_gateway: Callable[..., RunningGateway], tmp_path: Path
) -> None:
    """Then all users are dropped: the server would let a client from its own host make the first one, and does."""
    upstream = start_mongodb("6.0.5")
    access = Access.make()
    upstream.add_user(access.root.user, access.root.password, ["root"])
    uri = f"mongodb://{access.root.uri_part}{upstream.primary.address}/?replicaSet=rs0&authSource=admin"
    gateway = start_gateway(uri)
    node = upstream.primary
    with gateway.client() as nobody, MongoClient(uri) as root:
        with nobody.pub.c.watch(max_await_time_ms=50) as stream:
            root.pub.c.insert_one({"_id": 1})
            assert next(stream)["documentKey"] == {"_id": 1}
            restart_with(node, add=("--keyFile", str(access.write_key(tmp_path))))
            node.credentials = access.root
            node.wait_ready()
            insert_when_there_are_keys(root.pub.c, {"_id": 2})
            with pytest.raises(OperationFailure) as caught:
                pytest.fail(f"an event after the restart: {next(stream)}")
        assert caught.value.code == 13
        with pytest.raises(OperationFailure) as caught:
            nobody.pub.c.watch()
        assert caught.value.code == 13
    node.command({"dropAllUsersFromDatabase": 1})
    node.credentials = None
    restart_with(node)
    node.wait_ready()
    first = {"createUser": "mine", "pwd": "secret", "roles": ["root"], "$db": "admin"}
    told = answer_of(gateway.port, first)
    with WireClient(node.port) as direct:
        assert (told["code"], told["errmsg"]) == (13, "command createUser requires authentication")
        assert upstream.primary.is_primary
        assert direct.command(first)["ok"] == 1


def test_an_upstream_that_wants_certificates_of_all_is_refused_at_the_start(
    start_mongodb: Callable[..., ReplicaSet], start_gateway: Callable[..., RunningGateway], tmp_path: Path
) -> None:
    upstream = start_mongodb("6.0.5", tls=True)
    folder = next(tmp_path.rglob("client.pem")).parent
    restart_with(upstream.nodes[0], remove=("--tlsAllowConnectionsWithoutCertificates",))
    own = f"{upstream.uri}&tlsCertificateKeyFile={quote_plus(str(folder / 'client.pem'))}"
    with MongoClient[Document](own, serverSelectionTimeoutMS=30_000) as client:
        client.admin.command("ping")
    with pytest.raises(SettingsError, match="without a client certificate") as caught:
        start_gateway(own)
    assert "tlsAllowConnectionsWithoutCertificates" in caught.value.hint


def test_an_answer_that_is_no_plain_yes_means_that_authentication_is_wanted(
    gateway: RunningGateway, start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet
) -> None:
    """A server that fails the question in any way is not taken for an open one."""
    fail = {"failCommands": ["getParameter"], "errorCode": 2, "appName": "no-such"}
    assert gateway.gateway.upstream.auth.known is False
    del fail["appName"]
    with mongodb.primary.fail_point("failCommand", "alwaysOn", fail):
        refusing = start_gateway(mongodb.uri)
        assert refusing.gateway.upstream.auth.known is True
        with WireClient(refusing.port) as client:
            told = client.command({"find": "c", "$db": "pub"})
            assert (told["code"], told["errmsg"]) == (13, "command find requires authentication")
    with WireClient(refusing.port) as client:
        while "errmsg" in client.command({"find": "c", "$db": "pub"}):
            continue  # it is asked again, every second
