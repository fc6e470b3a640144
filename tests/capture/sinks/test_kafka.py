"""What is particular to Kafka: topics, partitions, headers, limits, and exactly-once delivery."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import bson
import pytest
import structlog
from bson import Timestamp
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from structlog.testing import capture_logs

from sink_sides import KafkaSide, change, records
from tailrace.capture import kafka_handover
from tailrace.capture.dead_letters.dead_letters import FileDeadLetters, TopicDeadLetters
from tailrace.capture.formats import make_format
from tailrace.capture.kafka_client import KafkaAddress, ensure_topic
from tailrace.capture.kafka_handover import ClientHandover, CompiledHandover, open_handover
from tailrace.capture.positions import Position, PositionStore, open_store
from tailrace.capture.record import CompiledRecords
from tailrace.capture.sinks import Sink, SinkOptions, kafka, open_sink
from tailrace.capture.sinks.kafka import KafkaSink
from tailrace.capture.sinks.kafka_topics import Topic
from tailrace.capture.sinks.topics import TopicRule
from tailrace.errors import CaptureError, LeaseLost, SettingsError, SinkUnavailable, StoreUnavailable
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.stand import Kafka
from waiting import SECONDS


def position(seconds: int) -> Position:
    return Position(bson.encode({"_data": f"82{seconds:08X}000000012B0229296E04"}), Timestamp(seconds, 1))


def test_missing_topics_are_made_with_the_partitions_and_named_by_the_rule(kafka_side: KafkaSide) -> None:
    with kafka_side.sink() as sink:
        sink.setup()
        sink.add([*records(1), *records(2, ns="shop.größe$")])
        sink.flush(30)
    admin = AdminClient({"bootstrap.servers": kafka_side.broker.bootstrap_servers})
    topics = admin.list_topics(timeout=120).topics
    for name in ("shop.orders", "shop.gr_c3_b6_c3_9fe_24"):
        assert len(topics[f"{kafka_side.prefix}.{name}"].partitions) == 3


def test_a_topic_that_exists_keeps_its_partitions(kafka_side: KafkaSide) -> None:
    address = KafkaAddress(kafka_side.broker.bootstrap_servers)
    admin = AdminClient(address.config())
    ensure_topic(admin, f"{kafka_side.prefix}.shop.orders", 5, {})
    with kafka_side.sink() as sink:
        sink.setup()
        sink.add(records(1))
        sink.flush(30)
    assert len(admin.list_topics(timeout=120).topics[f"{kafka_side.prefix}.shop.orders"].partitions) == 5


@pytest.mark.usefixtures("handover")
def test_messages_carry_key_value_and_headers_and_one_key_stays_in_one_partition(kafka_side: KafkaSide) -> None:
    sent = records(*range(100))
    with kafka_side.sink() as sink:
        sink.setup()
        sink.add(sent)
        sink.flush(30)
    messages = kafka_side.messages()
    by_value = {message.value(): message for message in messages}
    for record in sent:
        message = by_value[record.value]
        assert (message.key(), message.headers()) == (record.key, record.headers)
    places = {(message.key(), message.partition()) for message in messages}
    assert Counter(key for key, _ in places) == dict.fromkeys({record.key for record in sent}, 1)
    assert len({partition for _, partition in places}) > 1


@pytest.mark.usefixtures("handover")
def test_a_tombstone_is_a_message_without_value(kafka_side: KafkaSide) -> None:
    deleted = make_format("debezium").batch([change(3, "delete")])
    with kafka_side.sink() as sink:
        sink.setup()
        sink.add(deleted)
        sink.flush(30)
    assert [(message.key(), message.value()) for message in kafka_side.messages()] == [
        (deleted[0].key, deleted[0].value),
        (deleted[0].key, None),
    ]


@pytest.mark.usefixtures("handover")
def test_a_topic_with_a_low_limit_gets_small_batches_and_refuses_only_what_is_too_large(
    kafka_side: KafkaSide, letters: Callable[[], list[Any]]
) -> None:
    address = KafkaAddress(kafka_side.broker.bootstrap_servers)
    limit = {"max.message.bytes": "3000"}
    ensure_topic(AdminClient(address.config()), f"{kafka_side.prefix}.shop.orders", 1, limit)
    sizes = [20_000 if number == 60 else 1000 for number in range(100)]
    with kafka_side.sink() as sink:
        sink.setup()
        sink.add(make_format("json").batch([change(number, size=size) for number, size in enumerate(sizes)]))
        assert sink.flush(60) == 100
    assert kafka_side.numbers() == [number for number in range(100) if number != 60]
    assert [letter["token"][2:10] for letter in letters()] == [f"{61:08X}"]


@pytest.mark.usefixtures("handover")
def test_the_dead_letter_topic_holds_key_token_cause_and_the_raw_event_whatever_its_size(kafka_side: KafkaSide) -> None:
    topic = f"{kafka_side.prefix}.dead-letters"
    address = KafkaAddress(kafka_side.broker.bootstrap_servers)
    with TopicDeadLetters(address, topic) as dead_letters:
        kafka_side.dead_letters = dead_letters
        (large,) = records(7, size=2_500_000)
        with kafka_side.sink() as sink:
            sink.setup()
            sink.add([large])
            sink.flush(60)
        assert dead_letters.count == 1
    parts = kafka_side.messages(topic)
    headers = dict(parts[0].headers())
    assert b"".join(part.value() for part in parts) == large.event
    assert [dict(part.headers())["part"] for part in parts] == [b"1/3", b"2/3", b"3/3"]
    assert {part.key() for part in parts} == {large.key}
    assert headers["token"] == dict(large.headers)["token"]
    assert (headers["cause"], headers["namespace"]) == (b"record-refused", b"shop.orders")
    assert b"MSG_SIZE_TOO_LARGE" in headers["message"]


def test_namespaces_that_kafka_cannot_tell_apart_do_not_share_a_topic(kafka_side: KafkaSide) -> None:
    with kafka_side.sink() as sink:
        sink.setup()
        sink.add(records(1, ns="shop.a b"))
        with pytest.raises(SettingsError, match=r"shop\.a b and shop\.a_20b would share"):
            sink.add(records(2, ns="shop.a_20b"))
        sink.flush(60)


# --- exactly once


@pytest.fixture
def store(kafka_side: KafkaSide) -> Iterator[PositionStore]:
    with open_store(store_url(kafka_side)) as store:
        yield store


def store_url(side: KafkaSide) -> str:
    return f"kafka://{side.broker.bootstrap_servers}/{side.prefix}.positions"


def exactly_once(side: KafkaSide, store: PositionStore, name: str | None = None) -> Sink:
    options = SinkOptions(topics=TopicRule(side.prefix), partitions=3)
    url = f"kafka://{side.broker.bootstrap_servers}"
    return open_sink(url, side.dead_letters, options, exactly_once=(store, name or side.prefix))


@pytest.mark.usefixtures("handover")
def test_records_and_position_become_visible_together(kafka_side: KafkaSide, store: PositionStore) -> None:
    lease = store.acquire(kafka_side.prefix, "host/1")
    with exactly_once(kafka_side, store) as sink:
        sink.setup()
        assert sink.add(records(*range(50))) == 50
        sink.flush(30)
        assert sink.acknowledged() == 0
        assert kafka_side.numbers() == []
        with open_store(store_url(kafka_side)) as other:
            assert other.load(kafka_side.prefix) is None
        lease = sink.commit(position(50), lease)
        assert sink.acknowledged() == 50
        sink.add(records(*range(50, 60)))
        sink.commit(position(60), lease)
    assert sorted(kafka_side.numbers()) == list(range(60))
    loaded = store.load(kafka_side.prefix)
    assert loaded
    assert loaded.cluster_time.time == 60


@pytest.mark.usefixtures("handover")
def test_a_commit_without_records_moves_the_position(kafka_side: KafkaSide, store: PositionStore) -> None:
    lease = store.acquire(kafka_side.prefix, "host/1")
    with exactly_once(kafka_side, store) as sink:
        sink.setup()
        sink.commit(position(5), sink.commit(position(4), lease))
    loaded = store.load(kafka_side.prefix)
    assert loaded
    assert loaded.cluster_time.time == 5


@pytest.mark.usefixtures("handover")
def test_what_was_not_committed_is_never_seen(kafka_side: KafkaSide, store: PositionStore) -> None:
    lease = store.acquire(kafka_side.prefix, "host/1")
    with exactly_once(kafka_side, store) as sink:
        sink.setup()
        sink.commit(position(1), lease)
        sink.add(records(*range(10)))
        sink.flush(30)
    with exactly_once(kafka_side, store) as again:
        again.setup()
        again.add(records(*range(10, 20)))
        again.commit(position(2), lease)
    assert sorted(kafka_side.numbers()) == list(range(10, 20))


def test_a_lease_is_not_renewed_in_the_middle_of_a_transaction(kafka_side: KafkaSide, store: PositionStore) -> None:
    lease = store.acquire(kafka_side.prefix, "host/1")
    with exactly_once(kafka_side, store) as sink:
        sink.setup()
        sink.add(records(1))
        with pytest.raises(StoreUnavailable, match="wait for their commit"):
            store.renew(lease)
        sink.commit(position(1), lease)
    assert kafka_side.numbers() == [1]


@pytest.mark.usefixtures("handover")
def test_a_zombie_is_fenced(kafka_side: KafkaSide, store: PositionStore) -> None:
    """It sleeps with a transaction open, another takes over, and it can neither commit nor disturb the other."""
    name = kafka_side.prefix
    zombie_lease = store.acquire(name, "host/1", seconds=0.01)
    with open_store(store_url(kafka_side)) as other_store:
        zombie, other = exactly_once(kafka_side, store), exactly_once(kafka_side, other_store)
        with zombie, other:
            zombie.setup()
            zombie.add(records(*range(10)))
            zombie.flush(30)
            lease = other_store.wait_for_lease(name, "host/2", timeout=60)
            other.setup()
            other.add(records(*range(10)))
            lease = other.commit(position(10), lease)
            with pytest.raises(CaptureError):
                zombie.commit(position(99), zombie_lease)
            with exactly_once(kafka_side, store) as reborn, pytest.raises(LeaseLost):
                reborn.setup()
            other.add(records(*range(10, 20)))
            other.commit(position(20), lease)
    assert sorted(kafka_side.numbers()) == list(range(20))
    loaded = store.load(name)
    assert loaded
    assert (loaded.cluster_time.time, loaded.writer) == (20, "host/2")


def test_in_a_transaction_too_large_records_are_dead_lettered_beforehand(
    kafka_side: KafkaSide, store: PositionStore, letters: Callable[[], list[Any]]
) -> None:
    lease = store.acquire(kafka_side.prefix, "host/1")
    with exactly_once(kafka_side, store) as sink:
        sink.setup()
        assert sink.add([*records(1), *records(2, size=2_000_000), *records(3)]) == 3
        sink.commit(position(3), lease)
        assert sink.acknowledged() == 3
    assert sorted(kafka_side.numbers()) == [1, 3]
    assert len(letters()) == 1


@pytest.mark.usefixtures("handover")
def test_a_record_of_a_transaction_that_is_almost_too_large_is_judged_by_itself(
    kafka_side: KafkaSide, store: PositionStore, letters: Callable[[], list[Any]]
) -> None:
    """A batch is known to have no record near the limit of its topic, or its records are measured one by one."""
    topic = Topic("orders", 1_000_000)
    for size in (10, 998_000, 999_000, 1_000_100):
        batch = records(1, 2, size=size)
        if isinstance(batch, CompiledRecords):
            assert topic.may_refuse_some(batch) >= any(map(topic.may_refuse, batch))
    lease = store.acquire(kafka_side.prefix, "host/1")
    with exactly_once(kafka_side, store) as sink:
        sink.setup()
        for number, size in enumerate((1_046_000, 2_000_000, 10)):
            sink.add(records(number, size=size))
        sink.commit(position(3), lease)
    assert sorted(kafka_side.numbers()) == [0, 2]
    assert len(letters()) == 1


@pytest.mark.usefixtures("handover")
def test_a_record_that_is_refused_inside_a_transaction_ends_it_whole(
    kafka_side: KafkaSide, store: PositionStore
) -> None:
    """The topic's limit falls after the sink has read it: nothing of the transaction is seen, nor is its position."""
    address, topic = KafkaAddress(kafka_side.broker.bootstrap_servers), f"{kafka_side.prefix}.shop.orders"
    admin = AdminClient(address.config())
    ensure_topic(admin, topic, 1, {})
    lease = store.acquire(kafka_side.prefix, "host/1")
    with exactly_once(kafka_side, store) as sink:
        sink.setup()
        sink.add(records(0))
        lease = sink.commit(position(1), lease)
        low = ConfigEntry("max.message.bytes", "3000", incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[low])
        for done in admin.incremental_alter_configs([changed]).values():
            done.result(SECONDS)
        sink.add(records(1, size=8_000))
        with pytest.raises(CaptureError):
            sink.commit(position(2), lease)
    assert kafka_side.numbers() == [0]
    loaded = store.load(kafka_side.prefix)
    assert loaded is not None
    assert loaded.cluster_time.time == 1
    with exactly_once(kafka_side, store) as sink:
        sink.setup()
        sink.add(records(2))
        sink.commit(position(3), lease)
    assert kafka_side.numbers() == [0, 2]


def test_a_topic_with_a_low_limit_met_inside_a_transaction(kafka_side: KafkaSide, store: PositionStore) -> None:
    address = KafkaAddress(kafka_side.broker.bootstrap_servers)
    ensure_topic(AdminClient(address.config()), f"{kafka_side.prefix}.shop.small", 1, {"max.message.bytes": "3000"})
    lease = store.acquire(kafka_side.prefix, "host/1")
    with exactly_once(kafka_side, store) as sink:
        sink.setup()
        sink.add(records(*range(20), size=1000))
        sink.add(records(*range(20, 40), size=1000, ns="shop.small"))
        sink.commit(position(1), lease)
    assert sorted(kafka_side.numbers()) == list(range(20))
    assert len(kafka_side.messages(f"{kafka_side.prefix}.shop.small")) == 20


def test_exactly_once_needs_positions_in_kafka(kafka_side: KafkaSide, tmp_path: Any) -> None:
    with open_store(f"file:{tmp_path}") as store, pytest.raises(SettingsError, match="position"):
        exactly_once(kafka_side, store)


COMMIT_FOREVER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import bson
from bson import Timestamp
from sink_sides import records
from tailrace.capture.dead_letters.dead_letters import NoDeadLetters
from tailrace.capture.positions import Position, open_store, this_process
from tailrace.capture.sinks import SinkOptions, open_sink
from tailrace.capture.sinks.topics import TopicRule
_, _, servers, prefix = sys.argv
with open_store(f"kafka://{servers}/{prefix}.positions") as store:
    lease = store.acquire(prefix, this_process(), seconds=600)
    options = SinkOptions(topics=TopicRule(prefix), partitions=3)
    sink = open_sink(f"kafka://{servers}", NoDeadLetters(), options, exactly_once=(store, prefix))
    sink.setup()
    at = store.load(prefix)
    number = at.cluster_time.time if at else 0
    while True:
        sink.add(records(*range(number, number + 7)))
        number += 7
        lease = sink.commit(Position(bson.encode({"_data": "82"}), Timestamp(number, 1)), lease)
        print(number, flush=True)
"""


def test_a_producer_killed_at_any_moment_delivers_each_record_once(kafka_side: KafkaSide, store: PositionStore) -> None:
    tests = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", COMMIT_FOREVER, tests, kafka_side.broker.bootstrap_servers, kafka_side.prefix]
    for kills in range(3):
        writer = GuardedProcess(command, stdout=subprocess.PIPE)
        assert writer.stdout
        try:
            for _ in range(1 + 2 * kills):
                assert writer.stdout.readline(), "the producer ended by itself"
        finally:
            writer.kill()
            writer.wait(SECONDS)
            writer.stdout.close()
    lease = store.acquire(kafka_side.prefix, "the last one")
    with exactly_once(kafka_side, store) as sink:
        sink.setup()
        sink.commit(store.load(kafka_side.prefix) or position(0), lease)
    loaded = store.load(kafka_side.prefix)
    assert loaded
    assert loaded.cluster_time.time >= 7 * 3
    assert sorted(kafka_side.numbers()) == list(range(loaded.cluster_time.time))


@pytest.mark.long
@pytest.mark.usefixtures("handover")
def test_records_wait_while_the_broker_is_away_and_arrive_once(
    start_server: Callable[..., Any], dead_letters: FileDeadLetters
) -> None:
    """A broker of its own is killed and comes back: `pytest -m long`."""
    side = KafkaSide(dead_letters, start_server(Kafka))
    with side.sink() as sink:
        assert isinstance(sink, KafkaSink)
        sink.setup()
        sink.add(records(*range(100)))
        side.broker.kill()
        sink.add(records(*range(100, 200)))
        side.broker.restart()
        assert sink.flush(60) == 200
    assert sorted(side.numbers()) == list(range(200))


def test_the_kernel_hands_records_over_where_it_runs(kafka_side: KafkaSide, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tailrace_kernel")
    for wanted, kind in (("on", CompiledHandover), ("off", ClientHandover)):
        monkeypatch.setenv("TAILRACE_KERNEL", wanted)
        with kafka_side.sink() as sink:
            assert isinstance(sink, KafkaSink)
            sink.setup()
            assert isinstance(sink._handover, kind)


def test_the_kernel_hands_over_the_records_of_transactions_too(
    kafka_side: KafkaSide, store: PositionStore, handover: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record becomes an object of Python on its way: that was more than half of what exactly-once cost."""

    def refuse(_: CompiledRecords) -> NoReturn:
        raise AssertionError("the records of a batch are made one by one")

    monkeypatch.setattr(CompiledRecords, "__iter__", refuse)
    lease = store.acquire(kafka_side.prefix, "host/1")
    with exactly_once(kafka_side, store) as sink:
        assert isinstance(sink, KafkaSink)
        sink.setup()
        sink.add(records(*range(20)))
        assert isinstance(sink._handover, CompiledHandover if handover == "kernel" else ClientHandover)
        sink.commit(position(20), lease)
    assert sorted(kafka_side.numbers()) == list(range(20))


@pytest.mark.usefixtures("handover")
def test_a_full_queue_of_the_library_is_waited_for(kafka_side: KafkaSide, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {**kafka.PRODUCER_SETTINGS, "queue_buffering_max_messages": 50}
    monkeypatch.setattr(kafka, "PRODUCER_SETTINGS", small)
    with kafka_side.sink() as sink:
        sink.setup()
        sink.add(records(*range(500)))
        assert sink.flush(30) == 500
    assert sorted(kafka_side.numbers()) == list(range(500))


@pytest.mark.usefixtures("handover")
def test_a_setting_that_the_library_does_not_know_is_an_error_of_ours(kafka_side: KafkaSide) -> None:
    address = KafkaAddress(kafka_side.broker.bootstrap_servers, options={"no.such.setting": "1"})
    with pytest.raises(SettingsError, match=r"no\.such\.setting"):
        open_handover(address, kafka.PRODUCER_SETTINGS)


@pytest.mark.usefixtures("handover")
def test_a_queue_that_stays_full_takes_nothing_more(kafka_side: KafkaSide, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {**kafka.PRODUCER_SETTINGS, "queue_buffering_max_messages": 50}
    monkeypatch.setattr(kafka, "PRODUCER_SETTINGS", small)
    monkeypatch.setattr(kafka_handover, "_SECONDS_FOR_CAPACITY", 0.05)
    with kafka_side.sink() as sink:
        sink.setup()
        sink.add(records(0))
        sink.flush(30)
        kafka_side.stall()
        try:
            with pytest.raises(SinkUnavailable, match="takes no records"):
                sink.add(records(*range(1, 500)))
        finally:
            kafka_side.go_on()
    assert len(kafka_side.numbers()) <= 51


def test_a_library_that_is_not_known_is_used_through_pythons_client(
    kafka_side: KafkaSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it is one that nobody has loaded, so that there is nothing to ask for its version."""
    pytest.importorskip("tailrace_kernel")
    monkeypatch.setenv("TAILRACE_KERNEL", "on")
    monkeypatch.setattr(kafka_handover, "_library", lambda: "/nowhere/librdkafka.so.1")
    structlog.reset_defaults()
    with capture_logs() as lines, kafka_side.sink() as sink:
        sink.setup()
        assert isinstance(sink, KafkaSink)
        assert isinstance(sink._handover, ClientHandover)
        sink.add(records(1))
        assert sink.flush(30) == 1
    assert ["is not loaded" in line["why"] for line in lines if line["event"] == "kernel_handover_refused"] == [True]


def test_the_kernel_refuses_what_is_no_client_library_of_kafka() -> None:
    compiled = pytest.importorskip("tailrace_kernel")
    loaded = Path("/proc/self/maps").read_text().split()
    other = next(path for path in loaded if path.endswith("libc.so.6"))
    with pytest.raises(NotImplementedError):
        compiled.KafkaProducer(other, [])


@pytest.mark.long
@pytest.mark.parametrize("version", ["2.6.0", "2.8.0", "2.10.0", "2.12.0", "2.14.0", "2.16.1"])
def test_the_layouts_are_those_of_every_library_that_is_allowed(version: str, tmp_path: Path) -> None:
    """The proof of the layouts, with the libraries of older clients: `pytest -m long`."""
    pytest.importorskip("tailrace_kernel")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
    run_guarded([*install, f"confluent-kafka=={version}"], check=True, timeout=300)
    program = (
        "import confluent_kafka, tailrace_kernel; from tailrace.capture.kafka_handover import _library;"
        "assert _library().startswith(confluent_kafka.__file__.rsplit('/', 2)[0]);"
        "tailrace_kernel.KafkaProducer(_library(), [('log_level', '0')]); print(confluent_kafka.__version__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = run_guarded(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert done.stdout.strip() == version
