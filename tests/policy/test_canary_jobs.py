"""Marked documents behind Kafka: both Spark jobs, their files, Redis, and a dashboard. `make canary` runs it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, TopicPartition
from pymongo.database import Database

from canaries import Canaries, found_in
from dashboard_site import dashboard
from policy.test_canary_line import CHANGES, DEFINITION, ROUNDS, SEED, assert_hidden, files_in, settings_file
from tailrace.capture.kafka_client import bounds_of
from tailrace.cli.app import run
from tailrace.stand import Kafka, Redis, ReplicaSet
from waiting import wait_until


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("spark")
def test_no_mark_is_found_behind_kafka(
    spark: Any,
    mongodb: ReplicaSet,
    database: Database[Any],
    kafka: Kafka,
    start_server: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Topics, dead letters, features in Redis, tables, checkpoints, and all that a page answers."""
    monkeypatch.setattr("tailrace.cli.spark_session.spark_session", lambda _, **__: nullcontext(spark))
    canaries, name = Canaries(SEED + 1), database.name
    redis_server: Redis = start_server(Redis)
    dead_letters = b""
    showing = dict.fromkeys(("topic", "redis", "pages", "lake"), 0)
    rounds_with_something_to_show = 0
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        definition = folder / "definition.toml"
        definition.write_text(DEFINITION.format(name=name).replace(f'"{name}"', f'"{name}{number}"', 1))
        file = settings_file(
            database,
            folder,
            canaries,
            capture={
                "sink": f"kafka://{kafka.bootstrap_servers}",
                "topic_prefix": f"canary{number}",
                "dead_letters": "topic",
                "inventory": str(folder / "inventory"),
            },
            features={
                "redis_url": redis_server.url,
                "kafka_servers": kafka.bootstrap_servers,
                "dead_letters": str(folder / "bad"),
            },
            warehouse={
                "kafka_servers": kafka.bootstrap_servers,
                "folder": str(folder / "lake"),
                "catalog": f"{name}_{number}",
            },
        )
        words = ["--config", str(file)]
        hidden, shown = canaries.write(database.people, CHANGES)
        assert run([*words, "produce", "--until-idle"]) == 0
        more_hidden, more_shown = canaries.write(database.people, CHANGES)
        assert run([*words, "produce", "--until-idle"]) == 0
        hidden, shown = hidden | more_hidden, shown | more_shown
        topic = f"canary{number}.{name}.people"
        rest = ["--topics", topic, "--once", "--checkpoint"]
        assert run([*words, "features", str(definition), *rest, str(folder / "by-features")]) == 0
        assert run([*words, "warehouse", "run", f"{name}.people", *rest, str(folder / "by-tables")]) == 0
        outputs = files_in(folder, but="positions")
        outputs |= {each: records_of(kafka, each) for each in (topic, f"canary{number}.dead-letters")}
        dead_letters += outputs[f"canary{number}.dead-letters"]
        outputs["redis"] = b" ".join(_in_redis(redis_server))
        with dashboard(file) as site:
            wait_until(lambda: site.get("/api/events"), "events on the page")
            paths = [path for path in site.get("/api/openapi.json")["paths"] if path != "/api/stream"]
            asked = ["/", "/metrics", *(path for path in paths if "{" not in path and "actions" not in path)]
            asked += [f"/api/events/{line['number']}" for line in site.get("/api/events")]
            outputs["pages"] = b" ".join(site.http.get(path).content for path in asked)
        outputs["terminal"] = "".join(capfd.readouterr()).encode()
        outputs["log of the page"] = (folder / "dashboard.log").read_bytes()
        assert_hidden(outputs, hidden, canaries.rules)
        lake = b" ".join(content for path, content in outputs.items() if "/lake/" in path)
        for what, content in {**outputs, "topic": outputs[topic], "lake": lake}.items():
            if what in showing and any(found_in(content, mark) for mark in shown):
                showing[what] += 1
        rounds_with_something_to_show += bool(shown)  # an allow-list of one field that is hashed leaves nothing
        assert showing["topic"] == rounds_with_something_to_show, f"what may be shown is there: {canaries.rules}"
        database.people.drop()
    # Under some policies nothing is left that features are made of.
    assert all(showing.values()), f"what may be shown is everywhere, in one round or another: {showing}"
    assert dead_letters or ROUNDS < 2, "some event could not be converted"


def records_of(kafka: Kafka, topic: str) -> bytes:
    """All records of a topic: keys, values and headers."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "canary", "enable.auto.commit": False}
    )
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    ends = {number: bounds_of(consumer, topic, number) for number in partitions}
    wanted = sum(high - low for low, high in ends.values())
    consumer.assign([TopicPartition(topic, number, low) for number, (low, _) in ends.items()])
    found = []
    while len(found) < wanted:
        found += consumer.consume(wanted - len(found), timeout=5)
    consumer.close()
    return b" ".join((each.key() or b"") + (each.value() or b"") + repr(each.headers()).encode() for each in found)


def _in_redis(server: Redis) -> Iterable[bytes]:
    """Every key and every value."""
    with redis.Redis.from_url(server.url) as client:
        for key in client.scan_iter():
            yield key
            kind = client.type(key)
            if kind == b"string":
                yield client.get(key)
            elif kind == b"hash":
                yield repr(client.hgetall(key)).encode()
            elif kind == b"zset":
                yield repr(client.zrange(key, 0, -1)).encode()
            else:
                yield repr(client.smembers(key) if kind == b"set" else client.lrange(key, 0, -1)).encode()
