from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from fault_proxies import FaultProxy
from tailrace.stand import Kafka

SECONDS = 60


def producer(servers: str, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": servers, "log_level": 0, **settings})


@contextmanager
def consumer(servers: str, topic: str) -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "log_level": 0,
    }
    client = Consumer(settings)
    client.subscribe([topic])
    yield client
    client.close()


def committed_values(servers: str, topic: str) -> list[bytes]:
    """What a reader of committed records sees up to the end of the topic."""
    values = []
    with consumer(servers, topic) as client:
        while True:
            message = client.poll(SECONDS)
            assert message is not None, "the broker did not answer"
            error = message.error()
            if error and error.code() == KafkaError._PARTITION_EOF:
                return values
            assert not error, error
            values.append(message.value())


def send(client: Producer, topic: str, value: bytes) -> None:
    """Produce one record and raise the broker's own error if it is refused."""
    errors: list[KafkaError] = []
    client.produce(topic, value, on_delivery=lambda error, _: errors.append(error) if error else None)
    assert client.flush(SECONDS) == 0
    if errors:
        raise KafkaException(errors[0])


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}"


def test_readers_see_committed_transactions_only(kafka: Kafka, topic: str) -> None:
    client = producer(kafka.bootstrap_servers, **{"transactional.id": topic})
    client.init_transactions(SECONDS)
    client.begin_transaction()
    client.produce(topic, b"aborted")
    client.flush(SECONDS)
    client.abort_transaction(SECONDS)
    client.begin_transaction()
    client.produce(topic, b"committed")
    client.commit_transaction(SECONDS)
    assert committed_values(kafka.bootstrap_servers, topic) == [b"committed"]


def test_survives_crash_pause_and_a_bad_network(start_server: Callable[..., Kafka], topic: str) -> None:
    """One broker for all of it, because a broker takes seconds to start."""
    with FaultProxy.start() as proxy:
        broker = start_server(Kafka, {"message.max.bytes": 3_000}, proxy=proxy)
        direct = producer(broker.bootstrap_servers)
        send(direct, topic, b"before")
        with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
            send(direct, topic, b"x" * 4_000)

        broker.kill()
        broker.restart()
        send(direct, topic, b"after the crash")

        broker.pause()
        impatient = producer(broker.bootstrap_servers, **{"message.timeout.ms": 500})
        with pytest.raises(KafkaException, match="MSG_TIMED_OUT"):
            send(impatient, topic, b"never sent, because the broker is paused")
        broker.resume()

        proxy.refuse()
        cut_off = producer(broker.proxied_servers, **{"message.timeout.ms": 500})
        with pytest.raises(KafkaException, match="MSG_TIMED_OUT"):
            send(cut_off, topic, b"never sent, because the network refuses")
        proxy.heal()
        behind = producer(broker.proxied_servers)
        send(behind, topic, b"through the proxy")
        assert proxy.connections > 0

        assert committed_values(broker.bootstrap_servers, topic) == [
            b"before",
            b"after the crash",
            b"through the proxy",
        ]


def test_a_broker_without_a_proxy_says_so(kafka: Kafka) -> None:
    with pytest.raises(ValueError, match="without a proxy"):
        _ = kafka.proxied_servers
