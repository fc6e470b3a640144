"""Dead letters in files, and none at all; those in topics are tested with the Kafka sink."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import bson
import pytest
from structlog.testing import capture_logs

from sink_sides import change, records
from tailrace.capture.dead_letters.dead_letters import FILE, FileDeadLetters, NoDeadLetters, TopicDeadLetters
from tailrace.capture.sinks import open_dead_letters
from tailrace.capture.sinks.topics import TopicRule
from tailrace.errors import EventUnconvertible, RecordRefused, SettingsError, SinkUnavailable

ERROR = EventUnconvertible("no way to write it")


def test_a_letter_says_what_why_and_when(tmp_path: Path) -> None:
    event = change(6)
    with FileDeadLetters(tmp_path / "new" / "folder", clock=lambda: 1_700_000_000) as letters:
        letters.add(event, ERROR)
        assert letters.count == 1
    letter = json.loads((tmp_path / "new" / "folder" / FILE).read_text())
    assert (letter["cause"], letter["message"]) == ("event-unconvertible", "no way to write it")
    assert (letter["namespace"], letter["operation"]) == ("shop.orders", "insert")
    assert letter["token"] == bson.decode(event)["_id"]["_data"]
    assert letter["at"] == "2023-11-14T22:13:20+00:00"
    assert base64.b64decode(letter["event"]) == event
    assert bson.decode(base64.b64decode(letter["key"])) == {"_id": 6}


@pytest.mark.parametrize("event", [b"", b"no BSON at all", bson.encode({"a": 1}), change(1)[:-9]])
def test_even_an_event_that_cannot_be_read_is_kept(tmp_path: Path, event: bytes) -> None:
    letters = FileDeadLetters(tmp_path)
    letters.add(event, ERROR)
    letters.add_record(records(2)[0], RecordRefused("too large"))
    first, second = map(json.loads, (tmp_path / FILE).read_text().splitlines())
    assert base64.b64decode(first["event"]) == event
    assert second["cause"] == "record-refused"


def test_the_log_tells_of_letters_and_is_not_filled_by_them(tmp_path: Path) -> None:
    letters = FileDeadLetters(tmp_path)
    with capture_logs() as lines:
        for number in range(1_000):
            letters.add(change(number), ERROR)
    assert lines[0] == {
        "event": "dead_letter_written", "log_level": "warning",
        "namespace": "shop.orders", "operation": "insert", "cause": "event-unconvertible",
    }  # fmt: skip
    assert len(lines) < 100


def test_without_dead_letters_the_stream_stops() -> None:
    with pytest.raises(RecordRefused, match="no way to write it"):
        NoDeadLetters().add(change(1), ERROR)


def test_a_disk_that_cannot_be_written_is_tried_again_later() -> None:
    with pytest.raises(SinkUnavailable):
        FileDeadLetters(Path("/dev/null/folder")).add(change(1), ERROR)


def test_the_setting(tmp_path: Path) -> None:
    rule = TopicRule("cdc")
    assert isinstance(open_dead_letters("stop", "kafka://h:1", rule), NoDeadLetters)
    assert isinstance(open_dead_letters("topic", "kafka://h:1", rule), TopicDeadLetters)
    assert isinstance(open_dead_letters("topic", "stdout:", rule), FileDeadLetters)
    in_folder = open_dead_letters(f"file:{tmp_path}", "kafka://h:1", rule)
    assert isinstance(in_folder, FileDeadLetters)
    assert in_folder.path == tmp_path / FILE
    with pytest.raises(SettingsError):
        open_dead_letters("somewhere", "kafka://h:1", rule)
