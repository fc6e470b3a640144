"""Kafka over TLS, by both ways to hand over records: with passwords, certificates, and tokens of an endpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import bson
import pytest
from bson import Timestamp
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kafka_security import KafkaSecurity
from sink_sides import KafkaSide, records
from tailrace.capture.dead_letters.dead_letters import DeadLetters
from tailrace.capture.kafka_address import KafkaAddress
from tailrace.capture.kafka_handover import ClientHandover, CompiledHandover
from tailrace.capture.positions import Position, open_store
from tailrace.capture.sinks import SinkOptions, open_sink
from tailrace.capture.sinks.kafka import KafkaSink
from tailrace.capture.sinks.topics import TopicRule
from tailrace.cli.app import run
from tailrace.dashboard.answers import ObservedEvent
from tailrace.dashboard.sources.dead_letters import TopicDeadLetters
from tailrace.dashboard.sources.topics import TopicsSource
from tailrace.errors import CaptureError, SinkUnavailable
from tailrace.settings import Settings
from tailrace.stand import Kafka, ReplicaSet
from tailrace.stand.node import ThrowAwayCA
from token_endpoint import TokenEndpoint
from waiting import SECONDS, wait_until

USER, PASSWORD = "alice", "p@ss/word"


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenEndpoint]:
    with TokenEndpoint.serve({USER: PASSWORD}) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory, tokens: TokenEndpoint) -> KafkaSecurity:
    certificates = ThrowAwayCA.make(tmp_path_factory.mktemp("certificates"))
    return KafkaSecurity(certificates, USER, PASSWORD, jwks_url=tokens.jwks_url)


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


def by_token(broker: Kafka, security: KafkaSecurity, tokens: TokenEndpoint, secret: str = PASSWORD) -> str:
    """A URL with client credentials; the client library fetches tokens, and new ones before they end."""
    options = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": USER, "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.token.endpoint.url": tokens.url, "ssl.ca.location": security.certificates.ca_file,
    }  # fmt: skip
    return f"kafka://{broker.secured_servers}?{urlencode(options)}"


def by_certificate(broker: Kafka, security: KafkaSecurity, certificate: Path | None = None) -> str:
    own = certificate or security.certificates.client_certificate_key_file
    options = {
        "security.protocol": "SSL", "ssl.ca.location": security.certificates.ca_file,
        "ssl.certificate.location": own, "ssl.key.location": own,
    }  # fmt: skip
    return f"kafka://{broker.mutual_servers}?{urlencode(options)}"


@pytest.mark.parametrize("how", ["token", "certificate"])
def test_who_has_no_password_comes_by_a_token_or_a_certificate(
    broker: Kafka, security: KafkaSecurity, tokens: TokenEndpoint, dead_letters: DeadLetters, how: str, handover: str
) -> None:
    allow(broker, "client", ("TOPIC", "", "PREFIXED", "ALL"))
    url = by_token(broker, security, tokens) if how == "token" else by_certificate(broker, security)
    side, given = KafkaSide(dead_letters, broker, url), len(tokens.given)
    with side.sink() as sink:
        sink.setup()
        assert isinstance(sink, KafkaSink)
        assert isinstance(sink._handover, CompiledHandover if handover == "kernel" else ClientHandover)
        sink.add(records(*range(300)))
        assert sink.flush(30) == 300
    assert sorted(side.numbers()) == list(range(300))
    assert (len(tokens.given) > given) == (how == "token")


@pytest.mark.parametrize("how", ["password", "token", "certificate"])
def test_the_page_and_doctor_come_the_same_way(
    broker: Kafka, security: KafkaSecurity, tokens: TokenEndpoint, dead_letters: DeadLetters, mongodb: ReplicaSet,
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str,
) -> None:  # fmt: skip
    """Who comes by a certificate may do nothing with groups, and needs not."""
    allow(broker, "client", ("TOPIC", "", "PREFIXED", "ALL"))
    ways = {"token": by_token(broker, security, tokens), "certificate": by_certificate(broker, security)}
    sink_url = ways.get(how) or f"{url(broker, security)}&sasl.mechanism=SCRAM-SHA-512"
    side = KafkaSide(dead_letters, broker, sink_url)
    with side.sink() as sink:
        sink.setup()
        sink.add(records(*range(20)))
        assert sink.flush(30) == 20
    (tmp_path / "sink").write_text(sink_url)
    file = tmp_path / "tailrace.toml"
    file.write_text(
        f'[mongodb]\nuri = "{mongodb.uri}"\n[capture]\nsink_file = "sink"\ntopic_prefix = "{side.prefix}"\n'
        f'position_store = "file:{tmp_path}"\n'
    )
    seen: list[ObservedEvent] = []
    page = TopicsSource(Settings.load(file).capture, seen.append)
    letters = TopicDeadLetters(KafkaAddress.parse(sink_url), f"{side.prefix}.shop.orders")
    try:
        wait_until(lambda: page.poll().records == 20 and seen, "records on the page")
        assert letters.poll().newest, "any topic's messages are shown as dead letters"
    finally:
        page.close()
        letters.close()
    run(["--config", str(file), "doctor"])
    printed = capsys.readouterr().out
    assert "1 broker" in next(line for line in printed.splitlines() if " sink " in line)
    assert PASSWORD not in printed


def test_a_token_is_replaced_before_it_ends(
    broker: Kafka, security: KafkaSecurity, tokens: TokenEndpoint, dead_letters: DeadLetters, monkeypatch
) -> None:
    """The broker ends connections whose token has ended; who sends across that moment notices nothing."""
    monkeypatch.setattr(tokens, "seconds", 4)
    side = KafkaSide(dead_letters, broker, by_token(broker, security, tokens))
    with side.sink() as sink:
        sink.setup()
        sent, given = 0, len(tokens.given)
        while len(tokens.given) < given + 3:
            sink.add(records(sent))
            sent += 1
            assert sink.flush(30) == sent
            time.sleep(0.05)
    assert sorted(side.numbers()) == list(range(sent))


def allow(broker: Kafka, user: str, *acls: tuple[str, str, str, str]) -> None:
    """Give a user ACLs: type and name of the resource, pattern, operation. An empty prefix is a literal `*`."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    made = [
        AclBinding(
            ResourceType[kind], name or "*", ResourcePatternType["LITERAL" if not name else pattern],
            f"User:{user}", "*", AclOperation[operation], AclPermissionType.ALLOW,
        )
        for kind, name, pattern, operation in acls
    ]  # fmt: skip
    for future in admin.create_acls(made).values():
        future.result(SECONDS)


@pytest.mark.parametrize("wrong", ["secret", "certificate"])
def test_a_wrong_secret_or_a_strangers_certificate_shows_in_setup(
    broker: Kafka, security: KafkaSecurity, tokens: TokenEndpoint, dead_letters: DeadLetters, wrong: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("tailrace.capture.sinks.kafka_topics.SECONDS_TO_ANSWER", 2.0)
    strangers = ThrowAwayCA.make(tmp_path).client_certificate_key_file
    url = (
        by_token(broker, security, tokens, "guess")
        if wrong == "secret"
        else by_certificate(broker, security, strangers)
    )
    with KafkaSide(dead_letters, broker, url).sink() as sink, pytest.raises(SinkUnavailable) as refused:
        sink.setup()
    assert "guess" not in str(refused.value)


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
        admin.delete_topics([topic], operation_timeout=30)[topic].result(SECONDS)
        sink.add(records(1))
        with pytest.raises(SinkUnavailable):
            sink.flush(60)
    with secured.sink() as sink:
        sink.setup()
        sink.add(records(2))
        assert sink.flush(30) == 1
    assert secured.numbers() == [2]
