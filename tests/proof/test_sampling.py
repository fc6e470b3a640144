"""Samples on a server whose release was compared: a defect that nobody knew of ends what the engine serves."""

from __future__ import annotations

from typing import Any

import bson
import pytest

from proof.mutations import OUTPUT
from proof.test_hidden_servers import _Mutated
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.source.oplog import OplogSource
from tailrace.capture.source.proving import SAMPLE, Side
from tailrace.capture.source.source import Start
from tailrace.proof import Trust
from tailrace.settings import Settings

pytestmark = pytest.mark.mongodb("6.0.5")
COUNT = 3 * SAMPLE
FIELDS = ["k", "n"]
"""In the order in which the server tells of them; the defect turns it round."""


@pytest.fixture
def defect(monkeypatch) -> None:
    """An engine that turns the updated fields round."""
    mutate, plain = OUTPUT["updated fields turned round"], OplogSource.open
    monkeypatch.setattr(
        OplogSource, "open", lambda self, start, **options: _Mutated(plain(self, start, **options), mutate)
    )


def read(mongodb, database, tmp_path, sample_one_in: int) -> tuple[list[list[str]], Capture]:
    """Write inserts and updates, then read them as a producer does; gives the updated fields of each update."""
    settings = Settings.load(
        flags={
            "mongodb.uri": mongodb.uri,
            "capture.source": "oplog",
            "capture.namespaces": (database.name,),
            "capture.position_store": f"file:{tmp_path / 'positions'}",
            "capture.dead_letters": f"file:{tmp_path / 'letters'}",
            "capture.sink": "stdout:",
            "engine.sample_one_in": sample_one_in,
        }
    )
    with Capture.open(settings, database.client) as capture:
        start = Start(capture.source.now()[0])
        for number in range(COUNT):
            database.orders.insert_one({"_id": number, "n": 0, "k": 0})
            database.orders.update_one({"_id": number}, {"$set": {"k": 1, "n": number + 1}})
        stream = capture.source.open(start)
        events: list[dict[str, Any]] = []
        for batch in stream.batches():
            events += map(bson.decode, batch.events)
            if len(events) >= 2 * COUNT:
                break
        stream.close()
        assert [each["documentKey"]["_id"] for each in events] == [n // 2 for n in range(2 * COUNT)], (
            "none lost or twice"
        )
        return [list(each["updateDescription"]["updatedFields"]) for each in events[1::2]], capture


def test_a_defect_is_found_by_samples(mongodb, database, tmp_path, defect):
    updates, capture = read(mongodb, database, tmp_path, sample_one_in=1)
    ledger = capture.source.ledger
    assert ledger.presumes, "the release was compared"
    assert {kind.operation for kind in ledger.kinds() if ledger.trust(kind) is Trust.DISTRUSTED} == {"update"}
    assert capture.source.side is Side.SERVER, "updates come from the server for good"
    assert updates[-SAMPLE:] == [FIELDS] * SAMPLE
    assert capture.dead_letters.count >= 1, "with the evidence"


@pytest.mark.mongodb("6.0.27", "7.0.28")
def test_samples_of_a_right_engine_find_nothing(mongodb, database, tmp_path):
    """6.0.27 can split large events, and a stream that does has tokens of another version."""
    updates, capture = read(mongodb, database, tmp_path, sample_one_in=1)
    assert updates == [FIELDS] * COUNT
    assert not capture.source.ledger.has_doubts
    assert sum(record.identical for record in capture.source.ledger.kinds().values()) >= SAMPLE
    assert capture.source.side is Side.ENGINE


def test_without_samples_it_is_not(mongodb, database, tmp_path, defect):
    """So the test above fails when no samples are taken."""
    updates, capture = read(mongodb, database, tmp_path, sample_one_in=0)
    assert updates == [FIELDS[::-1]] * COUNT
    assert capture.dead_letters.count == 0


def test_samples_of_an_engine_that_is_right_change_nothing(mongodb, database, tmp_path):
    updates, capture = read(mongodb, database, tmp_path, sample_one_in=1)
    assert updates == [FIELDS] * COUNT
    compared = sum(record.identical for record in capture.source.ledger.kinds().values())
    assert compared >= SAMPLE, "some were compared"
    assert not capture.source.ledger.has_doubts
    assert capture.source.side is Side.ENGINE
