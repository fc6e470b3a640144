"""What is particular to JSON lines and to the Redis cache."""

from __future__ import annotations

import base64
import json
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
import pytest
import redis

from sink_sides import change, records
from tailrace import raw
from tailrace.capture.dead_letters.dead_letters import DeadLetters
from tailrace.capture.formats import make_format
from tailrace.capture.sinks import SinkOptions, open_sink
from tailrace.errors import SettingsError
from tailrace.stand import Redis


def test_a_line_that_a_crash_cut_off_is_removed(tmp_path: Path, dead_letters: DeadLetters) -> None:
    path = tmp_path / "events.jsonl"
    for torn in (b"", b'{"ns":"half', b"x" * 200_000):
        path.write_bytes(b'{"whole":1}\n' + torn)
        with open_sink(f"file:{path}", dead_letters, SinkOptions()) as sink:
            sink.setup()
            sink.add(records(1))
            sink.flush(1)
        first, second = path.read_text().splitlines()
        assert json.loads(first) == {"whole": 1}
        assert json.loads(second)["value"]["fullDocument"]["number"] == 1


def test_bson_is_base64_in_a_line(tmp_path: Path, dead_letters: DeadLetters) -> None:
    event = change(4)
    with open_sink(f"file:{tmp_path / 'events'}", dead_letters, SinkOptions(is_json=False)) as sink:
        sink.setup()
        sink.add(make_format("bson").records(event))
        sink.flush(1)
    line = json.loads((tmp_path / "events").read_text())
    assert base64.b64decode(line["value"]) == event
    assert bson.decode(base64.b64decode(line["key"])) == {"_id": 4}


def test_lines_on_standard_output(capfdbinary: pytest.CaptureFixture[bytes], dead_letters: DeadLetters) -> None:
    with open_sink("stdout:", dead_letters, SinkOptions()) as sink:
        sink.setup()
        sink.add(records(1, 2))
        assert sink.flush(1) == 2
    lines = capfdbinary.readouterr().out.splitlines()
    assert [json.loads(line)["key"] for line in lines] == [{"_id": 1}, {"_id": 2}]


def test_a_reader_of_standard_output_that_went_away_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, dead_letters: DeadLetters
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as nowhere:
        monkeypatch.setattr("sys.stdout", types.SimpleNamespace(buffer=nowhere))
        with open_sink("stdout:", dead_letters, SinkOptions()) as sink:
            sink.setup()
            with pytest.raises(BrokenPipeError):
                sink.add(records(1))


def test_the_keys_of_changed_documents_leave_the_cache(
    redis_server: Redis, dead_letters: DeadLetters, letters: Callable[[], list[Any]]
) -> None:
    format = make_format("bson")
    drop = bson.encode({"_id": {"_data": "82" + "0" * 20}, "operationType": "drop", "ns": {"db": "shop", "coll": "x"}})
    with redis.Redis.from_url(redis_server.url) as cache:
        cache.mset({"shop/orders/1": "a", "shop/orders/2": "b", "shop/orders/3": "c"})
        url = f"{redis_server.url}?key={{db}}/{{coll}}/{{_id}}"
        with open_sink(url, dead_letters, SinkOptions()) as sink:
            sink.setup()
            events = [change(1), change(2, "delete"), change(1, "update"), drop]
            sink.add([format.records(event)[0] for event in events])
            assert sink.flush(30) == 4
        assert cache.keys() == [b"shop/orders/3"]
    assert letters() == []


def test_odd_values_beside_the_key_keep_no_document_in_the_cache(
    redis_server: Redis, dead_letters: DeadLetters, letters: Callable[[], list[Any]]
) -> None:
    odd = raw.document(raw.element(raw.STRING, b"note", raw.string(b"\xff")))
    event = raw.append(raw.without(change(1), b"fullDocument"), raw.element(raw.DOCUMENT, b"fullDocument", odd))
    with redis.Redis.from_url(redis_server.url) as cache:
        cache.set("odd:1", "a")
        with open_sink(f"{redis_server.url}?key=odd:{{_id}}", dead_letters, SinkOptions()) as sink:
            sink.setup()
            sink.add(make_format("bson").records(event))
            assert sink.flush(30) == 1
        assert cache.get("odd:1") is None
        assert letters() == []
        with open_sink(f"{redis_server.url}?key=odd:{{note}}", dead_letters, SinkOptions()) as sink:
            sink.setup()
            sink.add(make_format("bson").records(event))
            assert sink.flush(30) == 1
    assert "no UTF-8" in letters()[0]["message"]


def test_an_event_without_the_field_of_the_key_is_dead_lettered(
    redis_server: Redis, dead_letters: DeadLetters, letters: Callable[[], list[Any]]
) -> None:
    with open_sink(f"{redis_server.url}?key=user:{{user_id}}", dead_letters, SinkOptions()) as sink:
        sink.setup()
        sink.add(records(1))
        assert sink.flush(30) == 1
    assert "no user_id" in letters()[0]["message"]


def test_a_key_that_is_no_template_is_a_wrong_setting(redis_server: Redis, dead_letters: DeadLetters) -> None:
    with pytest.raises(SettingsError):
        open_sink(f"{redis_server.url}?key=user:{{", dead_letters, SinkOptions())
