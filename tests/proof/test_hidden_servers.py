"""The engine on real servers that give a made-up version: it earns its trust, and a defect is found first."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator

import bson
import pytest
from pymongo import MongoClient
from typer.testing import CliRunner

from hiding_proxy import HidingProxy
from proof.mutations import OUTPUT
from tailrace.capture.positions import open_store
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.source.oplog import OplogSource
from tailrace.capture.source.proving import ProvingSource, Side
from tailrace.capture.source.source import Start
from tailrace.cli.app import app
from tailrace.driver import Batch
from tailrace.engine.live import watch_oplog
from tailrace.errors import StreamRefused
from tailrace.proof import Trust
from tailrace.settings import Settings

pytestmark = pytest.mark.mongodb("6.0.27", "7.0.28")
MADE_UP = {"6.0.27": "6.3.27", "7.0.28": "8.9.28"}
MATCHES = 5


@pytest.fixture
def hidden(mongodb) -> Iterator[HidingProxy]:
    with HidingProxy(mongodb.primary.port, mongodb.version, MADE_UP[mongodb.version]) as proxy:
        yield proxy


@pytest.fixture
def settings(hidden, tmp_path, database) -> Settings:
    return Settings.load(
        flags={
            "mongodb.uri": hidden.uri,
            "capture.source": "oplog",
            "capture.namespaces": (database.name,),
            "capture.position_store": f"file:{tmp_path / 'positions'}",
            "capture.dead_letters": f"file:{tmp_path / 'letters'}",
            "capture.sink": "stdout:",
            "engine.matches": MATCHES,
        }
    )


class Writer:
    """Writes a bit of everything, until it is told to stop; each document's number says what belongs where."""

    def __init__(self, database) -> None:
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        orders = self._database.orders
        for number in range(100_000):
            orders.insert_one({"_id": number, "a": [1, 2, 3], "n": {"m": 1}})
            orders.update_one({"_id": number}, {"$set": {"n.m": number, "k": 1}, "$unset": {"a": 1}})
            orders.replace_one({"_id": number}, {"b": number})
            orders.delete_one({"_id": number})
            if self._stop.wait(0.002):
                return


def read(capture: Capture, database, enough) -> list[bytes]:
    """Read from where the writer begins until there is enough."""
    stream = capture.source.open(Start(capture.source.now()[0]))
    events: list[bytes] = []
    deadline = time.monotonic() + 120
    with Writer(database):
        for batch in stream.batches():
            events += batch.events
            if enough() or time.monotonic() > deadline:
                break
    stream.close()
    return events


def check_whole(events: list[bytes]) -> None:
    """Each document's four events are there, once, in order, and nothing between them is missing."""
    found = [(event["operationType"], event["documentKey"]["_id"]) for event in map(bson.decode, events)]
    found = found[: len(found) // 4 * 4]
    assert found == [(op, n) for n in range(len(found) // 4) for op in ("insert", "update", "replace", "delete")]


def test_the_engine_earns_its_trust(settings, hidden, database):
    with MongoClient(hidden.uri) as client, Capture.open(settings, client) as capture:
        source = capture.source
        assert isinstance(source, ProvingSource)
        with pytest.raises(StreamRefused, match="never compared"):
            watch_oplog(client)
        since: list[float] = []

        def enough() -> bool:
            if source.side is Side.ENGINE:
                since.append(time.monotonic())
            return len(since) > 20

        events = read(capture, database, enough)
        assert len(since) > 20, "the engine never took over"
        check_whole(events)
        assert source.ledger.by_trust()[Trust.DISTRUSTED] == 0
        with open_store(settings.capture.position_store.get_secret_value()) as store:
            kept = store.cells.read("~engine~default")
        assert kept is not None
        assert MADE_UP["7.0.28"] in str(kept) or MADE_UP["6.0.27"] in str(kept)


def test_a_defect_stays_with_the_server(settings, hidden, database, monkeypatch, tmp_path):
    """An engine that leaves something out of each update: updates come from the server for good, with the evidence."""
    mutate = OUTPUT["updated fields turned round"]
    plain = OplogSource.open

    def mutated_open(self, start, **options):
        return _Mutated(plain(self, start, **options), mutate)

    monkeypatch.setattr(OplogSource, "open", mutated_open)
    with MongoClient(hidden.uri) as client, Capture.open(settings, client) as capture:
        read_until = time.monotonic() + 5

        def enough() -> bool:
            return time.monotonic() > read_until

        events = read(capture, database, enough)
        check_whole(events)
        updates = [each for each in map(bson.decode, events) if each["operationType"] == "update"]
        assert updates
        assert all(next(iter(each["updateDescription"]["updatedFields"])) == "k" for each in updates)
        ledger = capture.source.ledger
        doubts = {kind.operation for kind in ledger.kinds() if ledger.trust(kind) is Trust.DISTRUSTED}
        assert doubts == {"update"}
        assert capture.dead_letters.count >= 1
    letters = [json.loads(line) for line in (tmp_path / "letters" / "dead-letters.jsonl").read_text().splitlines()]
    assert letters[0]["cause"] == "engine-differs"
    evidence = bson.decode(base64.b64decode(letters[0]["event"]))
    assert evidence["server"] != evidence["engine"]


class _Mutated:
    def __init__(self, stream, mutate) -> None:
        self._stream, self._mutate = stream, mutate

    def batches(self):
        for batch in self._stream.batches():
            yield Batch([self._mutate(event) for event in batch.events], batch.token, batch.operation_time)

    def close(self) -> None:
        self._stream.close()


def test_prove_reports(hidden, database):
    with Writer(database):
        found = CliRunner().invoke(app, ["engine", "prove", "--uri", hidden.uri, "--minutes", "0.05", "--json"])
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout[found.stdout.index("{") :])
    assert report["different"] == 0
    assert report["identical"] > 10
    assert {each["kind"] for each in report["kinds"]} >= {"insert/plain", "update/plain", "replace/plain"}
