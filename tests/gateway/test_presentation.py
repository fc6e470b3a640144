"""As whom the gateway presents itself to drivers: a mongos, or the only member of the upstream's replica set."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import MongoClient, ReadPreference
from pymongo.errors import ServerSelectionTimeoutError

from gateway.running_gateway import RunningGateway
from gateway.test_upstreams import served
from gateway.wire_client import WireClient
from tailrace import raw
from tailrace.gateway import Presentation
from tailrace.stand import ReplicaSet

Start = Callable[..., RunningGateway]
_OF_THE_PLACE = {"hosts", "primary", "me", "localTime", "connectionId", "lastWrite", "topologyVersion"}
"""What differs between two members, or two moments."""


@pytest.fixture
def member(start_gateway: Start, mongodb: ReplicaSet) -> RunningGateway:
    """A gateway that presents itself as a member of `mongodb`."""
    return start_gateway(mongodb.uri, present=Presentation.REPLICA_SET)


@pytest.mark.mongodb("4.2.6", "6.0.5")
@pytest.mark.parametrize("name", ["hello", "isMaster"])
def test_it_says_of_itself_what_a_primary_says(member: RunningGateway, mongodb: ReplicaSet, name: str) -> None:
    asked = {name: 1, "helloOk": True, "$db": "admin"}
    with WireClient(member.port) as through, WireClient(mongodb.primary.port) as direct:
        said, expected = through.command(asked), direct.command(asked)
        through.send(asked)
        length = struct.unpack("<iiii", through.exactly(16))[0]
        names = [bytes(found) for _, found, _, _ in raw.elements(through.exactly(length - 16)[5:])]
    assert len(names) == len(set(names)), "a driver may take the first of two, or the last"
    if expected["ok"] == 1:  # 4.2 has no `hello`
        assert said["hosts"] == [said["me"]] == [said["primary"]] == [f"127.0.0.1:{member.port}"]
        assert "lastWrite" in said
        assert set(said) | {"topologyVersion"} == set(expected) | {"topologyVersion"}
    assert _lasting(said) == _lasting(expected)


def _lasting(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name not in _OF_THE_PLACE}


def test_drivers_use_it_as_a_replica_set(member: RunningGateway, mongodb: ReplicaSet) -> None:
    with MongoClient[Any](f"mongodb://127.0.0.1:{member.port}/?replicaSet={mongodb.name}") as client:
        orders = client.shop.orders
        orders.drop()
        assert client.primary == ("127.0.0.1", member.port)
        assert client.nodes == {("127.0.0.1", member.port)}
        assert client.topology_description.topology_type_name == "ReplicaSetWithPrimary"
        orders.insert_one({"_id": 0})
        with orders.watch() as stream, client.start_session() as session:
            session.with_transaction(lambda each: orders.insert_many([{"_id": 1}, {"_id": 2}], session=each))
            assert [next(stream)["documentKey"]["_id"] for _ in range(2)] == [1, 2]
        preferred = orders.with_options(read_preference=ReadPreference.SECONDARY_PREFERRED)
        assert preferred.count_documents({}) == 3


def test_writes_and_reads_are_retried(member: RunningGateway) -> None:
    with MongoClient[Any](f"mongodb://127.0.0.1:{member.port}/?replicaSet=rs0") as client:
        orders = client.shop.retried
        orders.drop()
        for command in ("insert", "find"):
            data = {"failCommands": [command], "errorCode": 91, "errorLabels": ["RetryableWriteError"]}
            client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
            if command == "insert":
                orders.insert_one({"_id": 1})
        assert orders.find_one() == {"_id": 1}


def test_there_are_no_secondaries_to_read_from(member: RunningGateway) -> None:
    uri = f"mongodb://127.0.0.1:{member.port}/?replicaSet=rs0&readPreference=secondary"
    failing = pytest.raises(ServerSelectionTimeoutError, match="No replica set members match")
    with MongoClient[Any](uri, serverSelectionTimeoutMS=500) as client, failing:
        client.shop.orders.find_one()


def test_drivers_are_told_the_address_that_is_advertised(start_gateway: Start, mongodb: ReplicaSet) -> None:
    gateway = start_gateway(mongodb.uri, present=Presentation.REPLICA_SET, advertise="streams.example.com:27117")
    with WireClient(gateway.port) as through:
        said = through.command({"isMaster": 1, "$db": "admin"})
    assert said["hosts"] == [said["me"]] == [said["primary"]] == ["streams.example.com:27117"]


def test_the_flags_say_as_whom(mongodb: ReplicaSet) -> None:
    told = ("--present", "replica-set", "--advertise", "[::1]:27117")
    with served("--uri", mongodb.uri, *told) as uri, MongoClient[Any](uri, directConnection=True) as client:
        said = client.admin.command("hello")
    assert (said["setName"], said["hosts"]) == (mongodb.name, ["[::1]:27117"])


def test_it_is_a_mongos_if_nobody_says_otherwise(gateway: RunningGateway) -> None:
    with WireClient(gateway.port) as through:
        said = through.command({"isMaster": 1, "$db": "admin"})
    assert said["msg"] == "isdbgrid"
    assert not {"setName", "hosts", "primary", "me"} & said.keys()
