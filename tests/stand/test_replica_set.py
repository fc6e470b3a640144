"""Replica sets of every version, and everything that a test may do to them."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import bson
import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError

from tailrace.errors import StandError
from tailrace.stand import MONGODB_VERSIONS, ReplicaSet
from tailrace.stand.mongod_binary import MongodBinary

StartMongodb = Callable[..., ReplicaSet]


@pytest.mark.mongodb(*MONGODB_VERSIONS)
def test_every_version_takes_a_write_and_shows_its_event(mongodb, database):
    assert database.command("buildInfo")["version"] == mongodb.version
    with database.orders.watch(max_await_time_ms=5000) as stream:
        database.orders.insert_one({"_id": 1, "amount": 5})
        event = stream.next()
    assert (event["operationType"], event["fullDocument"]) == ("insert", {"_id": 1, "amount": 5})
    assert database.orders.find_one() == {"_id": 1, "amount": 5}


def test_reads_the_oplog_as_raw_entries(mongodb, database):
    _, before = mongodb.oplog_bounds()
    database.orders.insert_one({"_id": "seen"})
    entries = [bson.decode(entry) for entry in mongodb.oplog(after=before)]
    assert {"_id": "seen"} in [entry["o"] for entry in entries]


def test_three_nodes_elect_another_primary_when_the_first_steps_down(start_mongodb: StartMongodb):
    replica_set = start_mongodb(nodes=3)
    first = replica_set.primary
    replica_set.step_down(seconds=30)
    assert replica_set.primary is not first


def test_priorities_decide_who_leads(start_mongodb: StartMongodb):
    replica_set = start_mongodb(nodes=3, priorities=[1, 1, 0])
    config = replica_set.primary.command({"replSetGetConfig": 1})["config"]
    assert [member["priority"] for member in config["members"]] == [1, 1, 0]


def test_a_killed_node_comes_back_with_its_data(start_mongodb: StartMongodb):
    replica_set = start_mongodb()
    with replica_set.client() as client:
        client.shop.get_collection("orders", write_concern=WriteConcern("majority", j=True)).insert_one({"_id": 1})
    port = replica_set.primary.port
    replica_set.nodes[0].kill()
    assert not replica_set.nodes[0].alive
    replica_set.nodes[0].restart()
    assert replica_set.primary.port == port
    with replica_set.client() as client:
        assert client.shop.orders.count_documents({}) == 1


def test_a_paused_node_answers_nothing_until_it_is_resumed(start_mongodb: StartMongodb):
    node = start_mongodb().nodes[0]
    with node.client(socketTimeoutMS=500, connectTimeoutMS=500, serverSelectionTimeoutMS=500) as client:
        client.admin.command("ping")
        node.pause()
        with pytest.raises(PyMongoError):
            client.admin.command("ping")
        node.resume()
    assert node.command({"ping": 1})["ok"] == 1


def test_fail_points_are_set_and_cleared(start_mongodb: StartMongodb):
    node = start_mongodb().primary
    failing = {"failCommands": ["find"], "errorCode": 2}
    with node.client(retryReads=False) as client:
        with node.fail_point("failCommand", "alwaysOn", failing), pytest.raises(PyMongoError):
            client.shop.orders.find_one()
        assert client.shop.orders.find_one() is None


@pytest.mark.parametrize("version", ["4.2.6", "6.0.5"])
def test_the_oplog_rolls_over_on_purpose(start_mongodb: StartMongodb, version):
    replica_set = start_mongodb(version, oplog_mb=1)
    _, last = replica_set.oplog_bounds()
    first_left = replica_set.roll_over_oplog()
    assert first_left > last


@pytest.mark.parametrize("version", ["4.2.6", "6.0.5"])
def test_auth_and_tls(start_mongodb: StartMongodb, version):
    replica_set = start_mongodb(version, auth=True, tls=True)
    with replica_set.client() as client:
        client.shop.orders.insert_one({})
    reader = replica_set.add_user("reader", "s3cret/@", [{"role": "read", "db": "shop"}])
    assert "s3cret" not in repr(reader)
    uri = replica_set.uri.replace(replica_set.credentials.uri_part, reader.uri_part)
    with MongoClient(uri) as client:
        assert client.shop.orders.count_documents({}) == 1
        with pytest.raises(OperationFailure):
            client.shop.orders.insert_one({})
    plain = f"mongodb://{replica_set.nodes[0].address}/?directConnection=true"
    with (
        MongoClient(plain, serverSelectionTimeoutMS=500) as client,
        pytest.raises((ServerSelectionTimeoutError, ssl.SSLError)),
    ):
        client.admin.command("ping")


def test_a_users_own_mongod_is_used(start_mongodb: StartMongodb):
    own = MongodBinary.of_version("6.0.5").path
    assert start_mongodb(mongod=own).version == "6.0.5"


def test_an_unknown_version_and_a_missing_program_are_refused():
    with pytest.raises(StandError, match=r"no MongoDB 3\.6\.0"):
        ReplicaSet.start("3.6.0")
    with pytest.raises(StandError, match="no program"):
        ReplicaSet.start(mongod="no-such-mongod")
