"""Kafka over TLS with a user and a password, by both ways to hand over records and by both mechanisms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import bson
import pytest
from bson import Timestamp
from confluent_kafka.admin import AdminClient

from sink_sides import KafkaSide, records
from tailrace.capture.dead_letters.dead_letters import DeadLetters
from tailrace.capture.positions import Position, open_store
from tailrace.capture.sinks import SinkOptions, open_sink
from tailrace.capture.sinks.kafka import KafkaSink
from tailrace.capture.sinks.kafka_handover import ClientHandover, CompiledHandover
from tailrace.capture.sinks.topics import TopicRule
from tailrace.errors import CaptureError, SinkUnavailable
from tailrace.stand import Kafka, KafkaSecurity
from tailrace.stand.node import ThrowAwayCA

USER, PASSWORD = "alice", "p@ss/word"


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> KafkaSecurity:
    return KafkaSecurity(ThrowAwayCA.make(tmp_path_factory.mktemp("certificates")), USER, PASSWORD)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, security: KafkaSecurity) -> Iterator[Kafka]:
    """A broker that makes no topics by itself."""
    folder = tmp_path_factory.mktemp("secured-kafka")
    with Kafka.start({"auto.create.topics.enable": "false"}, security=security, folder=folder) as broker:
        yield broker


def url(
    broker: Kafka, security: KafkaSecurity, *, path: str = "", password: str = PASSWORD, ca_file: Path | None = None
) -> str:
    ca = quote(str(ca_file or security.certificates.ca_file), safe="")
    return f"kafka://{USER}:{quote(password, safe='')}@{broker.secured_servers}{path}?ssl.ca.location={ca}"


@pytest.fixture
def secured(broker: Kafka, security: KafkaSecurity, dead_letters: DeadLetters) -> KafkaSide:
    return KafkaSide(dead_letters, broker, url(broker, security))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_records_arrive(secured: KafkaSide, mechanism: str, handover: str) -> None:
    secured.url += f"&sasl.mechanism={mechanism}"
    with secured.sink() as sink:
        sink.setup()
        assert isinstance(sink, KafkaSink)
        assert isinstance(sink._handover, CompiledHandover if handover == "kernel" else ClientHandover)
        sink.add(records(*range(300)))
        assert sink.flush(30) == 300
    assert sorted(secured.numbers()) == list(range(300))


@pytest.mark.usefixtures("handover")
def test_a_wrong_password_shows_in_setup(
    broker: Kafka, security: KafkaSecurity, dead_letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.capture.sinks.kafka_topics.SECONDS_TO_ANSWER", 2.0)
    wrong = KafkaSide(dead_letters, broker, url(broker, security, password="guess"))
    with wrong.sink() as sink, pytest.raises(SinkUnavailable) as refused:
        sink.setup()
    assert "guess" not in str(refused.value)


@pytest.mark.usefixtures("handover")
def test_an_authority_that_did_not_sign_shows_in_setup(
    broker: Kafka,
    security: KafkaSecurity,
    dead_letters: DeadLetters,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace.capture.sinks.kafka_topics.SECONDS_TO_ANSWER", 2.0)
    other = ThrowAwayCA.make(tmp_path)
    side = KafkaSide(dead_letters, broker, url(broker, security, ca_file=other.ca_file))
    with side.sink() as sink, pytest.raises(SinkUnavailable):
        sink.setup()


def at(seconds: int) -> Position:
    return Position(bson.encode({"_data": f"82{seconds:08X}000000012B0229296E04"}), Timestamp(seconds, 1))


def test_exactly_once_with_a_zombie_that_is_fenced(
    broker: Kafka, security: KafkaSecurity, secured: KafkaSide, dead_letters: DeadLetters
) -> None:
    store_url = url(broker, security, path=f"/{secured.prefix}.positions")
    options = SinkOptions(topics=TopicRule(secured.prefix), partitions=3)
    with open_store(store_url) as store, open_store(store_url) as other_store:
        first = store.acquire(secured.prefix, "host/1", seconds=0.01)
        zombie = open_sink(secured.url, dead_letters, options, exactly_once=(store, secured.prefix))
        zombie.setup()
        zombie.add(records(*range(10)))
        lease = other_store.wait_for_lease(secured.prefix, "host/2", timeout=60)
        with open_sink(secured.url, dead_letters, options, exactly_once=(other_store, secured.prefix)) as other:
            other.setup()
            other.add(records(*range(10)))
            other.commit(at(10), lease)
        with pytest.raises(CaptureError):
            zombie.commit(at(99), first)
        zombie.close()
    assert sorted(secured.numbers()) == list(range(10))


@pytest.mark.usefixtures("handover")
def test_a_topic_that_somebody_deletes_is_unavailable_until_a_new_sink_makes_it_again(secured: KafkaSide) -> None:
    topic = f"{secured.prefix}.shop.orders"
    admin = AdminClient({"bootstrap.servers": secured.broker.bootstrap_servers})
    with secured.sink(seconds_to_deliver=2.0) as sink:
        sink.setup()
        sink.add(records(0))
        sink.flush(30)
        admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
        sink.add(records(1))
        with pytest.raises(SinkUnavailable):
            sink.flush(60)
    with secured.sink() as sink:
        sink.setup()
        sink.add(records(2))
        assert sink.flush(30) == 1
    assert secured.numbers() == [2]
