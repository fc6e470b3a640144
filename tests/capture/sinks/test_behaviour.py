"""What every sink does, run over all of them with the real other side."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sink_sides import OtherSide, records
from tailrace.capture.dead_letters.dead_letters import DeadLetters, NoDeadLetters
from tailrace.capture.record import Record
from tailrace.capture.sinks import Sink, SinkOptions, WorkerSink, open_sink
from tailrace.errors import Backpressure, RecordRefused, SettingsError, SinkUnavailable

Letters = Callable[[], list[Any]]


def per_key(numbers: Sequence[int]) -> dict[int, list[int]]:
    """The numbers of each key, in their order; the key of a number is its last digit."""
    return {key: [number for number in numbers if number % 10 == key] for key in range(10)}


def test_everything_arrives_in_order_per_key_and_is_acknowledged(side: OtherSide) -> None:
    with side.sink() as sink:
        sink.setup()
        assert sink.add(records(*range(500))) == 500
        assert sink.add(records(*range(500, 900))) == 900
        assert sink.acknowledged() <= 900
        assert sink.flush(30) == 900
        assert sink.acknowledged() == 900
        assert sink.dead_letters == 0
    assert per_key(side.numbers()) == per_key(range(900))


def test_an_empty_batch_changes_nothing(side: OtherSide) -> None:
    with side.sink() as sink:
        sink.setup()
        assert sink.flush(10) == 0
        assert sink.add([]) == 0
        assert sink.flush(10) == 0


def test_a_second_sink_goes_on_after_the_first(side: OtherSide) -> None:
    for numbers in (range(20), range(20, 40)):
        with side.sink() as sink:
            sink.setup()
            sink.add(records(*numbers))
            sink.flush(30)
    assert per_key(side.numbers()) == per_key(range(40))


def test_tombstones_are_delivered(side: OtherSide) -> None:
    (record,) = records(1)
    with side.sink() as sink:
        sink.setup()
        sink.add([record, record._replace(value=None)])
        assert sink.flush(30) == 2


def test_a_full_buffer_takes_nothing_and_says_when_to_try_again(side: OtherSide) -> None:
    if not side.stalls:
        pytest.skip("this sink writes at once and holds nothing")
    with side.sink(buffer_bytes=20_000) as sink:
        sink.setup()
        sink.add(records(0))
        sink.flush(30)
        side.stall()
        taken, full = fill(sink)
        assert full.retry_after > 0
        assert 10 < taken < 200
        with pytest.raises(SinkUnavailable):
            sink.flush(0.05)
        assert sink.acknowledged() <= taken
        side.go_on()
        assert sink.flush(30) == taken
        assert sink.add(records(taken)) == taken + 1
        sink.flush(30)
    assert per_key(side.numbers()) == per_key(range(taken + 1))


def fill(sink: Sink) -> tuple[int, Backpressure]:
    """Add records 1, 2, 3 ... until one is not taken; give its number and the error."""
    for number in range(1, 1000):
        try:
            sink.add(records(number))
        except Backpressure as full:
            return number, full
    pytest.fail("the buffer has no end")


def test_a_batch_larger_than_the_buffer_is_taken_when_nothing_else_is_held(side: OtherSide) -> None:
    with side.sink(buffer_bytes=1000) as sink:
        sink.setup()
        assert sink.add(records(*range(50))) == 50
        assert sink.flush(30) == 50


def test_a_refused_record_becomes_a_dead_letter_and_the_others_arrive(side: OtherSide, letters: Letters) -> None:
    if not side.refuses:
        pytest.skip("this sink refuses nothing for its size")
    too_large = records(5, size=2_000_000)[0]
    with side.sink() as sink:
        sink.setup()
        sink.add([*records(*range(5)), too_large, *records(*range(6, 30))])
        assert sink.flush(60) == 30
        assert sink.dead_letters == 1
    assert per_key(side.numbers()) == per_key([number for number in range(30) if number != 5])
    (letter,) = letters()
    assert letter["cause"] == "record-refused"
    assert letter["token"] == dict(too_large.headers)["token"].decode()
    assert (letter["namespace"], letter["operation"]) == ("shop.orders", "insert")


def test_without_dead_letters_a_refused_record_stops_the_sink(side: OtherSide) -> None:
    if not side.refuses:
        pytest.skip("this sink refuses nothing for its size")
    side.dead_letters = NoDeadLetters()
    with side.sink() as sink:
        sink.setup()
        sink.add(records(5, size=2_000_000))
        with pytest.raises(RecordRefused):
            sink.flush(60)


@pytest.mark.parametrize("url", ["kafka://127.0.0.1:1", "http://127.0.0.1:1/", "redis://127.0.0.1:1/0"])
def test_an_address_where_nobody_answers_shows_in_setup(
    url: str, dead_letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.capture.sinks.kafka_topics.SECONDS_TO_ANSWER", 0.5)
    with open_sink(url, dead_letters, SinkOptions()) as sink, pytest.raises(SinkUnavailable):
        sink.setup()


def test_a_file_that_cannot_be_written_shows_in_setup(dead_letters: DeadLetters) -> None:
    with open_sink("file:/proc/events", dead_letters, SinkOptions()) as sink, pytest.raises(SinkUnavailable):
        sink.setup()


@pytest.mark.parametrize("path", ["/dev/null/events", "/dev"])
def test_what_cannot_be_a_file_is_a_wrong_setting(path: str, dead_letters: DeadLetters) -> None:
    with open_sink(f"file:{path}", dead_letters, SinkOptions()) as sink, pytest.raises(SettingsError):
        sink.setup()


@pytest.mark.parametrize("url", ["ftp://host/", "nothing", "no_such_module:Sink", "json:loads?s=1", "kafka://"])
def test_a_sink_that_does_not_exist_is_a_wrong_setting(url: str, dead_letters: DeadLetters) -> None:
    with pytest.raises(SettingsError):
        open_sink(url, dead_letters, SinkOptions())


class Shelf(WorkerSink):
    """A sink of a user: needs nothing but `connect` and `deliver`."""

    kept: list[Record]

    def __init__(self, label: str) -> None:
        super().__init__(retry_seconds=5)
        self.label = label
        self.failures = 2

    def connect(self) -> None:
        self.kept = []

    def deliver(self, records: Sequence[Record]) -> None:
        if self.failures:
            self.failures -= 1
            raise SinkUnavailable("not yet")
        self.kept.extend(records)


@pytest.fixture
def users_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("users_sinks")
    module.Shelf = Shelf  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_sinks", module)


@pytest.mark.usefixtures("users_sinks")
def test_a_users_own_class_is_a_sink(dead_letters: DeadLetters) -> None:
    sink: Sink = open_sink("users_sinks:Shelf?label=top", dead_letters, SinkOptions())
    assert isinstance(sink, Shelf)
    with sink:
        sink.setup()
        sink.add(records(1, 2, 3))
        assert sink.flush(30) == 3
        assert (sink.label, [record.event for record in sink.kept]) == ("top", [r.event for r in records(1, 2, 3)])
