"""A policy holds for those who read MongoDB themselves: the page, and Spark jobs under any settings file."""

from __future__ import annotations

import base64
import json
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pyarrow.parquet as parquet
import pytest
from bson import Timestamp
from pymongo.database import Database

from canaries import found_in
from tailrace.capture.positions import Counts, Position
from tailrace.capture.producer.state_document import full_state
from tailrace.capture.producer.status import ProducerStatus
from tailrace.cli.app import run
from tailrace.dashboard.answers import ObservedEvent
from tailrace.dashboard.sources.change_stream import ChangeStreamSource
from tailrace.errors import HistoryLost
from tailrace.policy.configured import policy_of
from tailrace.proof import LedgerFile, TrustLedger, report
from tailrace.proof.comparator import Comparison
from tailrace.proof.kind import Kind
from tailrace.settings import CaptureSettings, Settings
from tailrace.stand import ReplicaSet
from tailrace.token import ResumeToken, TokenData

MARK = "canary-4711"
RULES = [{"fields": ["secret"], "action": "mask"}]


def test_the_page_shows_what_the_policy_shows(mongodb: ReplicaSet, database: Database[Any]) -> None:
    """Where the sink cannot be followed, the dashboard watches MongoDB itself."""
    found: list[ObservedEvent] = []
    given = {"mongodb": {"uri": mongodb.uri}, "policy": {"rules": RULES}}
    source = ChangeStreamSource(Settings.model_validate(given), found.append)
    try:
        source.poll()
        database.people.insert_one({"_id": 1, "secret": MARK})
        while not any(event.line.namespace == f"{database.name}.people" for event in found):
            source.poll()
    finally:
        source.close()
    assert MARK not in repr(found)


def test_evidence_of_a_difference_is_what_the_policy_shows(tmp_path: Path) -> None:
    """As the gateway keeps it in a file, and `engine prove --json` prints it."""
    policy = policy_of(Settings.model_validate({"policy": {"rules": RULES}}))
    kept = LedgerFile(tmp_path, "gateway")
    ledger = TrustLedger("6.0.5", 1, on_difference=kept.keep, policy=policy)
    server, engine = (
        bson.encode({
            "_id": {"_data": "8265F0A1B2000000072B0229296E04"}, "operationType": "insert",
            "clusterTime": bson.Timestamp(1, 1), "ns": {"db": "shop", "coll": "people"},
            "documentKey": {"_id": 1}, "fullDocument": {"_id": 1, "secret": MARK, "name": name},
        })
        for name in ("Ann", "Bob")
    )  # fmt: skip
    ledger.note([Comparison(Kind.of(server), server, engine, is_same=False)])
    written = json.loads(kept.evidence.read_text())
    shown = repr(report.as_json(ledger, seconds=1, failures=0)).encode()
    for evidence in (base64.b64decode(written["server"]), base64.b64decode(written["engine"]), shown):
        assert not found_in(evidence, MARK)
    assert b"Bob" in base64.b64decode(written["engine"])


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
def test_tables_hold_what_the_policy_of_the_named_settings_shows(
    spark: Any, mongodb: ReplicaSet, database: Database[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr("tailrace.cli.spark_session.spark_session", lambda _, **__: nullcontext(spark))
    lake = tmp_path / "lake"
    settings = tmp_path / "governed.toml"
    settings.write_text(
        f'[mongodb]\nuri = "{mongodb.uri}"\n[warehouse]\nfolder = "{lake}"\ncatalog = "{tmp_path.name}"\n'
        '[[policy.rules]]\nfields = ["secret"]\naction = "mask"\n'
    )
    database.people.insert_many([{"_id": n, "secret": MARK} for n in range(5)])
    words = ["warehouse", "run", f"{database.name}.people", "--backfill", "--once"]
    assert run(["--config", str(settings), *words, "--checkpoint", str(tmp_path / "checkpoint")]) == 0
    rows = [row for file in lake.rglob("*.parquet") for row in parquet.read_table(file).to_pylist()]
    assert len(rows) >= 5
    assert MARK not in repr(rows)


def test_a_position_is_shown_without_the_key_of_its_event() -> None:
    """In the producer's `/state` and on the page: the token of an event holds its documentKey."""
    time = Timestamp(1_700_000_000, 7)
    key = bson.encode({"_id": MARK})
    token = ResumeToken.encode(TokenData(time, uuid=bytes(16), event_identifier=key))
    assert found_in(token.hex.encode(), MARK)
    status = ProducerStatus("orders")
    status.moved(Position.behind(token.to_bson()), Counts())
    policy = policy_of(Settings.model_validate({"policy": {"rules": RULES}}))
    assert full_state(status, CaptureSettings(), [])["token"] == token.hex
    assert full_state(status, CaptureSettings(), [], policy)["token"] == ResumeToken.high_water_mark(time).hex


@pytest.mark.mongodb("4.2.6", "6.0.5")
def test_what_a_server_says_of_an_event_does_not_show_its_key(
    mongodb: ReplicaSet, database: Database[Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of an event over 16 MB the server quotes the token, which holds the `_id`."""
    settings = tmp_path / "governed.toml"
    settings.write_text(
        f'[mongodb]\nuri = "{mongodb.uri}"\n[policy]\nkey = "0123456789abcdef"\n'
        '[[policy.rules]]\nfields = ["_id"]\naction = "hash"\n'
    )
    database.people.insert_one({"_id": MARK, "a": "x" * 9 * 2**20})
    began = database.client.admin.command("ping")["operationTime"]
    database.people.update_one({"_id": MARK}, {"$set": {"b": "x" * 6 * 2**20}})
    words = ["--config", str(settings), "watch", f"{database.name}.people", "--full-document", "updateLookup"]
    assert run([*words, "--start-at", f"{began.time},{began.inc + 1}", "--count", "1"]) != 0
    text = capfd.readouterr().err
    assert "_data" in text, "the server quotes it"
    assert not found_in(text.encode(), MARK)


def test_an_error_of_the_spark_source_does_not_show_a_key(mongodb: ReplicaSet, database: Database[Any]) -> None:
    """Spark prints an error with its traceback; the server quotes the token that it has found instead."""
    from tailrace.spark.columns import ENVELOPE
    from tailrace.spark.source import TailraceDataSource

    with database.people.watch() as stream:
        database.people.insert_one({"_id": MARK})
        token = ResumeToken.parse(bson.encode(next(stream)["_id"])).decode()
    assert token.event_identifier is not None
    gone = replace(token, event_identifier=token.event_identifier.replace(b"4711", b"4712"))
    options = {
        "uri": mongodb.uri,
        "namespaces": f"{database.name}.people",
        "startAfter": ResumeToken.encode(gone).hex,
    }
    database.people.insert_one({"_id": f"{MARK}-2"})
    reader = TailraceDataSource(options).reader(ENVELOPE)
    (part, *_) = reader.partitions()
    with pytest.raises(HistoryLost) as failed:
        list(reader.read(part))
    text = "".join(traceback.format_exception(failed.value))
    assert "_data" in text, "the server quotes it"
    assert not found_in(text.encode(), MARK)
