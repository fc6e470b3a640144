"""Nothing that a policy hides leaves a capture: not in records, dead letters, inventories or logs."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Binary, Code, Regex
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database
from structlog.testing import capture_logs

from tailrace.capture.producer.assembly import Capture
from tailrace.capture.producer.control import FirstStep
from tailrace.capture.producer.parts import selection_of
from tailrace.errors import SettingsError
from tailrace.policy.configured import policy_of
from tailrace.settings import Settings

MARK = "canary-4711"
HASH = {"namespaces": ["*"], "fields": ["_id"], "action": "hash"}
SOURCES = pytest.mark.parametrize("source", ["change-stream", "oplog"])


def settings_of(
    database: Database[Any], folder: Path, *rules: dict[str, Any], source: str = "change-stream", **capture: Any
) -> Settings:
    return Settings.model_validate(
        {
            "mongodb": {"uri": f"mongodb://{database.client.address[0]}:{database.client.address[1]}/"},
            "policy": {"key": "0123456789abcdef", "rules": rules},
            "capture": {
                "source": source,
                "namespaces": [f"{database.name}.people"],
                "sink": f"file:{folder}/records",
                "position_store": f"file:{folder}/positions",
                "dead_letters": f"file:{folder}/dead",
                "inventory": f"{folder}/inventory",
                "full_document": "updateLookup",
                **capture,
            },
        }
    )


def run(settings: Settings, database: Database[Any], first_step: FirstStep = FirstStep.GO_ON) -> None:
    with Capture.open(settings, database.client) as capture:
        capture.producer(stop_when_idle=True, first_step=first_step).run()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records").open()]


def marked(chance: random.Random, depth: int = 3) -> Any:
    """A random value in which every leaf is marked."""
    leaf = [MARK, Binary(MARK.encode()), Regex(MARK), Code(MARK), Code(MARK, {"s": MARK})]
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(leaf)
    inner = [marked(chance, depth - 1) for _ in range(chance.randrange(3))]
    return inner if chance.random() < 0.5 else {chance.choice(["a", "b.c", "0", "_id"]): each for each in inner}


def people(count: int, chance: random.Random) -> list[dict[str, Any]]:
    return [
        {"_id": f"{MARK}-{number}", "secret": marked(chance), "known": {"a": [MARK]}, "n": number}
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("format", "source"),
    [("json", "oplog"), ("canonical", "change-stream"), ("bson", "change-stream"), ("debezium", "oplog")],
)
def test_no_mark_is_found_anywhere(
    database: Database[Any], tmp_path: Path, capfd: pytest.CaptureFixture[str], source: str, format: str
) -> None:
    """Snapshot, stream, deltas, images, deletes, dead letters and a recovery, with everything marked but one field."""
    chance = random.Random(format + source)
    rules = [HASH, {"fields": ["secret", "known.a", "**.later"], "action": chance.choice(["drop", "mask", "hash"])}]
    settings = settings_of(database, tmp_path, *rules, source=source, format=format)
    database.people.insert_many(people(30, chance))
    with capture_logs() as logs:
        run(settings, database)
        database.people.insert_one(RawBSONDocument(_twice("secret", f"{MARK}-twice")))
        for number in range(30):
            change = {"$set": {"known.a.0": MARK, "x.later": [MARK], "n": -number}}
            database.people.update_one({"_id": f"{MARK}-{number}"}, change)
            database.people.replace_one({"_id": f"{MARK}-{number + 30}"}, {"secret": MARK, "n": 1}, upsert=True)
        database.people.delete_many({"n": {"$gt": 25}})
        run(settings, database)
        database.people.delete_many({"n": {"$gt": 20}})
        run(settings, database, FirstStep.RECOVER)
    written = [file for file in tmp_path.rglob("*") if file.is_file() and "positions" not in file.parts]
    assert any("dead" in file.parts for file in written) == (format in ("json", "canonical", "debezium"))
    outputs = {str(file): file.read_bytes() for file in written} | {"log": repr(logs).encode()}
    outputs["terminal"] = "".join(capfd.readouterr()).encode()
    marks = {MARK.encode(), MARK.encode().hex().upper().encode(), *_in_base64(MARK)}
    found = [name for name, content in outputs.items() if any(mark in content for mark in marks)]
    assert not found


def _twice(name: str, id_: str) -> bytes:
    """A document with a field that is there twice, which only `bson` can carry."""
    one, two = bson.encode({"_id": id_, name: MARK}), bson.encode({name: MARK})
    body = one[4:-1] + two[4:]
    return (len(body) + 4).to_bytes(4, "little") + body


def _in_base64(text: str) -> set[bytes]:
    """The inner digits of a text in base64, for each of the three ways it can be aligned."""
    return {base64.b64encode(b"x" * shift + text.encode())[4 * (shift > 0) + 4 : -4] for shift in range(3)}


@SOURCES
def test_deletes_in_a_gap_are_found_under_hashed_keys(database: Database[Any], tmp_path: Path, source: str) -> None:
    settings = settings_of(database, tmp_path, HASH, source=source)
    database.people.insert_many([{"_id": f"p{number}", "n": number} for number in range(10)])
    run(settings, database)
    by_number = {line["value"]["fullDocument"]["n"]: line["value"]["documentKey"]["_id"] for line in lines(tmp_path)}
    seen = len(lines(tmp_path))
    database.people.delete_many({"n": {"$lt": 4}})
    run(settings, database, FirstStep.RECOVER)
    later = [line["value"] for line in lines(tmp_path)[seen:]]
    deleted = {value["documentKey"]["_id"] for value in later if value["operationType"] == "delete"}
    assert deleted == {by_number[number] for number in range(4)}


@pytest.mark.parametrize(
    ("policy", "capture", "says"),
    [
        ({"rules": [{"fields": ["a"], "action": "hash"}]}, {}, "no key"),
        ({"rules": [{"fields": ["_id"], "action": "mask"}]}, {}, "one document out of many"),
        ({"rules": [{"fields": ["_id.x"], "action": "drop"}]}, {}, "one document out of many"),
        ({"rules": [{"fields": ["a..b"], "action": "drop"}]}, {}, "not a path"),
        ({"rules": [{"fields": ["a"], "action": "truncate"}]}, {}, "length"),
        ({"rules": [{"fields": ["a"], "action": "drop", "length": 3}]}, {}, "length"),
        ({"key": "short", "rules": []}, {}, "guessed"),
        ({"rules": [{"fields": ["a"], "action": "drop"}]}, {"pipeline": '[{"$addFields": {"b": "$a"}}]'}, "$addFields"),
        ({"rules": [{"fields": ["a"], "action": "drop"}]}, {"pipeline": '[{"$unset": "documentKey"}]'}, "documentKey"),
        (
            {"rules": [{"fields": ["a"], "action": "drop"}]},
            {"pipeline": '[{"$unset": ["b", "ns.coll"]}]'},
            "removes ns",
        ),
    ],
)
def test_what_would_protect_nothing_is_refused(policy: Any, capture: Any, says: str) -> None:
    settings = Settings.model_validate({"policy": policy, "capture": capture})
    with pytest.raises(SettingsError, match=says.replace("$", r"\$")) as refused:
        policy_of(settings, selection_of(settings.capture).pipeline)
    assert refused.value.hint


@pytest.mark.mongodb("6.0.5", "7.0.28")
def test_ddl_events_of_a_server_hold_no_constant(database: Database[Any]) -> None:
    """Validators, partial indexes and views, in descriptions, in the state before, and in tokens."""
    rules = policy_of(settings_of(database, Path(), {"namespaces": ["*"], "fields": ["email"], "action": "drop"}))
    views = database.with_options(bson.codec_options.CodecOptions(document_class=RawBSONDocument))
    with views.watch(show_expanded_events=True, max_await_time_ms=500) as stream:
        hidden = {"email": {"$ne": MARK}}
        database.create_collection("people", validator=hidden)
        for level in ("strict", "moderate"):
            database.command({"collMod": "people", "validator": hidden, "validationLevel": level})
        database.people.create_index("n", partialFilterExpression={"email": MARK}, name="partial")
        database.people.drop_index("partial")
        database.create_collection("seen", viewOn="people", pipeline=[{"$match": hidden}])
        database.people.drop()
        raw: list[bytes] = []
        while not raw or bson.decode(raw[-1])["operationType"] != "drop":
            raw += [event.raw for event in [stream.try_next()] if event is not None]
    assert sum(MARK.encode() in event for event in raw) >= 6, "the server tells it"
    for event in [*map(rules.event, raw), *rules.events(raw)]:
        assert MARK.encode() not in event, bson.decode(event)
        assert MARK.encode() not in bytes.fromhex(bson.decode(event)["_id"]["_data"]), bson.decode(event)


@pytest.mark.parametrize(
    "stage",
    [
        {"$match": {"$expr": {"$eq": [{"$toInt": "$fullDocument.email"}, 1]}}},
        {"$match": {"$and": [{"a": 1}, {"$or": [{"$expr": True}]}]}},
        {"$redact": "$$KEEP"},
        {"$project": {"copy": "$fullDocument.email"}},
        {"$changeStreamSplitLargeEvent": {}},
    ],
)
def test_a_stage_whose_error_may_quote_a_value_is_refused(
    database: Database[Any], tmp_path: Path, stage: dict[str, Any]
) -> None:
    settings = settings_of(database, tmp_path, HASH, pipeline=json.dumps([stage]))
    with pytest.raises(SettingsError) as refused:
        policy_of(settings, selection_of(settings.capture).pipeline)
    assert refused.value.hint
