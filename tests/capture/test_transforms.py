"""Transforms by configuration: each a pure function, and together on the way from a real server to Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Timestamp
from confluent_kafka import Consumer
from pymongo.database import Database

from tailrace.capture.formats import make_format
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.sinks.topics import TopicRule
from tailrace.capture.transforms import add_fields, flat, flatten, keep, renames_of, route, transformed
from tailrace.errors import DeploymentUnsuitable, SettingsError
from tailrace.settings import Settings, TransformSettings
from tailrace.stand import Kafka, ReplicaSet
from tailrace.token import ResumeToken
from tailrace.token.resume_token import TokenData


def event(operation: str = "insert", **parts: Any) -> bytes:
    data = TokenData(Timestamp(7, 3), uuid=bytes(16), event_identifier=bson.encode({"_id": 1}))
    shown = {"_id": ResumeToken.encode(data).to_document(), "operationType": operation, "clusterTime": Timestamp(7, 3)}
    return bson.encode(shown | {"ns": {"db": "shop", "coll": "orders"}, "documentKey": {"_id": 1}} | parts)


PAID = event(fullDocument={"_id": 1, "status": "paid", "to": {"city": "Bonn", "geo": {"x": 1}}, "tags": [{"a": 1}]})


def test_a_filter_keeps_what_its_query_fits() -> None:
    large = keep('{"$or": [{"operationType": "delete"}, {"fullDocument.total": {"$gte": 10}}]}')
    assert large(event(fullDocument={"total": 10})) == event(fullDocument={"total": 10})
    assert large(event(fullDocument={"total": 9})) is None
    assert large(event("delete")) == event("delete")


def test_fields_are_added_to_documents_and_to_nothing_else() -> None:
    add = add_fields('{"region": "eu", "from": {"$concat": ["$ns.db", "/", "$ns.coll"]}}')
    assert bson.decode(add(PAID) or b"")["fullDocument"]["from"] == "shop/orders"
    assert bson.decode(add(PAID) or b"")["fullDocument"]["region"] == "eu"
    assert add(event("delete")) == event("delete")


def test_nested_fields_come_to_one_level_in_documents_and_updates() -> None:
    found = bson.decode(flatten("_")(PAID) or b"")
    assert found["fullDocument"] == {"_id": 1, "status": "paid", "to_city": "Bonn", "to_geo_x": 1, "tags": [{"a": 1}]}
    update = {"updatedFields": {"to.city": "Köln", "to.geo": {"x": 2}, "tags.0.a": 3}, "removedFields": ["to.zip"]}
    found = bson.decode(flatten("_")(event("update", updateDescription=update)) or b"")
    assert found["updateDescription"] == {
        "updatedFields": {"to_city": "Köln", "to_geo_x": 2, "tags.0.a": 3}, "removedFields": ["to_zip"],
    }  # fmt: skip
    assert flat({"a": {}, "b": {"c": None}}, ".") == {"a": {}, "b.c": None}


def test_records_are_routed_by_a_field() -> None:
    by_status, by_city = route("status"), route("to.city")
    record = make_format("json").records(PAID)[0]
    assert by_status(record).namespace == "shop.orders.paid"
    assert by_city(record).namespace == "shop.orders.Bonn"
    assert by_status(make_format("json").records(event("delete"))[0]).namespace == "shop.orders"
    assert TopicRule("t").topic(by_status(record).namespace) == "t.shop.orders.paid"


def test_topics_are_renamed_by_patterns() -> None:
    given = [TransformSettings(kind="rename-topic", pattern=r"^t\.shop\.(.*)$", replacement=r"public.\1.v1")]
    rule = TopicRule("t", renames=renames_of(given))
    assert rule.topic("shop.orders") == "public.orders.v1"
    assert rule.topic("other.orders") == "t.other.orders"


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "filter"},
        {"kind": "filter", "match": "{"},
        {"kind": "filter", "match": '{"$nothing": 1}'},
        {"kind": "add-fields", "fields": "[]"},
        {"kind": "route"},
    ],
)
def test_what_makes_no_sense_is_refused_with_a_hint(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as refused:
        transformed(make_format("json"), [TransformSettings(**wrong)])
    assert refused.value.hint
    with pytest.raises(SettingsError):
        renames_of([TransformSettings(kind="rename-topic", pattern="(", replacement="")])


def settings_of(mongodb: ReplicaSet, folder: Path, **capture: Any) -> Settings:
    where = {"position_store": f"file:{folder}/positions", "dead_letters": f"file:{folder}/dead"}
    return Settings.model_validate({"mongodb": {"uri": mongodb.uri}, "capture": {**where, **capture}})


def run(settings: Settings, database: Database[Any]) -> None:
    with Capture.open(settings, database.client) as capture:
        capture.producer(stop_when_idle=True).run()


def test_transforms_and_ddl_events_on_their_way_to_kafka(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[Any], tmp_path: Path
) -> None:
    name = database.name
    transforms = [
        {"kind": "filter", "match": '{"fullDocument.draft": {"$ne": true}}'},
        {"kind": "add-fields", "fields": '{"region": "eu"}'},
        {"kind": "route", "field": "status"},
        {"kind": "rename-topic", "pattern": f"^tr-{name}\\.{name}\\.", "replacement": f"pub-{name}."},
    ]
    settings = settings_of(
        mongodb, tmp_path, sink=f"kafka://{kafka.bootstrap_servers}", namespaces=[name], topic_prefix=f"tr-{name}",
        start="now", transforms=transforms, ddl_topic=f"ddl-{name}",
    )  # fmt: skip
    run(settings, database)
    database.create_collection("orders")
    database.orders.create_index("status")
    database.orders.insert_many([{"_id": 1, "status": "paid"}, {"_id": 2, "draft": True}, {"_id": 3, "status": "new"}])
    database.orders.drop()
    run(settings, database)
    found = read(kafka, [f"pub-{name}.orders.paid", f"pub-{name}.orders.new", f"ddl-{name}", f"pub-{name}.orders"], 6)
    assert [each["fullDocument"]["_id"] for each in found[f"pub-{name}.orders.paid"]] == [1]
    assert [each["fullDocument"] for each in found[f"pub-{name}.orders.new"]] == [
        {"_id": 3, "status": "new", "region": "eu"}
    ]
    assert [each["operationType"] for each in found[f"ddl-{name}"]] == ["create", "createIndexes", "drop"]
    assert [each["operationType"] for each in found[f"pub-{name}.orders"]] == ["drop"]


def read(kafka: Kafka, topics: list[str], count: int) -> dict[str, list[Any]]:
    """Read so many records of topics."""
    options = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topics[0], "auto.offset.reset": "earliest"}
    consumer = Consumer(options)
    consumer.subscribe(topics)
    found: dict[str, list[Any]] = {}
    try:
        while sum(map(len, found.values())) < count:
            message = consumer.poll(60)
            assert message is not None, f"only {found}"
            assert not message.error(), message.error()
            found.setdefault(message.topic() or "", []).append(json.loads(message.value() or b""))
        return found
    finally:
        consumer.close()


def test_time_series_collections_are_refused_by_name(
    mongodb: ReplicaSet, database: Database[Any], tmp_path: Path
) -> None:
    database.create_collection("weather", timeseries={"timeField": "at"})
    settings = settings_of(mongodb, tmp_path, sink="stdout:", namespaces=[f"{database.name}.weather"])
    with pytest.raises(DeploymentUnsuitable, match=f"{database.name}.weather is a time-series collection"):
        Capture.open(settings, database.client)
    with Capture.open(settings_of(mongodb, tmp_path, sink="stdout:", namespaces=[database.name]), database.client):
        pass


def test_ddl_events_of_the_oplog_are_refused(mongodb: ReplicaSet, database: Database[Any], tmp_path: Path) -> None:
    settings = settings_of(mongodb, tmp_path, sink="stdout:", source="oplog", ddl_topic="ddl")
    with pytest.raises(SettingsError, match="own change streams"):
        Capture.open(settings, database.client)
