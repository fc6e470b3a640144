"""`tailrace position`, over a store of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Timestamp

from tailrace.capture.positions import Counts, Position, PositionStore, open_store
from tailrace.cli.app import EXIT_STOP, EXIT_UNAVAILABLE, EXIT_USAGE, run

HEX = "826543210F000000072B0229296E04"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> PositionStore:
    """The default store, with one position in it."""
    store = open_store("file:.tailrace/positions")
    lease = store.acquire("orders", "host/1")
    token = bson.encode({"_data": HEX})
    store.save(Position(token, Timestamp(0x6543210F, 7), fingerprint="f00d", counts=Counts(12, 3400, 2, 1)), lease)
    store.release(lease)
    return store


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_show_all_and_one(store: PositionStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["position", "show", "--json"]) == 0
    (shown,) = printed(capsys)
    assert (shown["name"], shown["token"], shown["held_by"]) == ("orders", {"_data": HEX}, None)
    assert run(["position", "show", "orders"]) == 0
    text = capsys.readouterr().out
    assert HEX in text
    assert "12 events" in text
    assert "2023-11-02" in text


def test_the_position_of_each_shard_is_shown_carried_over_and_left_behind_by_set(
    store: PositionStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = {"s0": HEX, "s1": HEX.replace("6543210F", "65432100")}
    lease = store.acquire("orders", "host/1")
    shards = {name: bson.encode({"_data": token}) for name, token in own.items()}
    store.save(Position(shards["s1"], Timestamp(0x65432100, 7), shards), lease, reason="two shards")
    store.release(lease)
    assert run(["position", "show", "orders"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, token in own.items():
        assert any(f"shard {name}" in line and token in line and "2023-11-02" in line for line in lines)
    assert run(["position", "export", "--output", "p.json"]) == 0
    assert run(["position", "import", "p.json", "--store", "file:other", "--reason", "moved"]) == 0
    carried = open_store("file:other").load("orders")
    assert carried
    assert carried.shards == shards
    assert run(["position", "set", "orders", "--token", HEX, "--reason", "all shards behind one token"]) == 0
    moved = store.load("orders")
    assert moved
    assert moved.shards == {}


def test_show_one_that_is_missing(store: PositionStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["position", "show", "orders", "nothing"]) == 1
    assert "nothing has no position" in capsys.readouterr().err


def test_set_to_a_token_and_to_a_time(store: PositionStore, capsys: pytest.CaptureFixture[str]) -> None:
    token = HEX.replace("6543210F", "65432110")
    assert run(["position", "set", "orders", "--token", token, "--reason", "skip a bad minute"]) == 0
    moved = store.load("orders")
    assert moved
    assert (moved.token, moved.cluster_time) == (bson.encode({"_data": token}), Timestamp(0x65432110, 7))
    assert (moved.counts.events, moved.fingerprint) == (12, "f00d")
    assert run(["position", "set", "orders", "--at", "2023-11-01T00:00:00Z", "--reason", "deliver again"]) == 0
    moved = store.load("orders")
    assert moved
    assert (moved.token, moved.cluster_time) == (None, Timestamp(1698796800, 0))
    capsys.readouterr()
    assert run(["position", "history", "orders", "--json"]) == 0
    whys = [change["why"] for change in printed(capsys) if change["what"] == "moved"]
    assert whys == ["deliver again", "skip a bad minute"]
    assert run(["position", "history", "orders"]) == 0
    assert "skip a bad minute" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--token", HEX], EXIT_USAGE),
        (["--reason", "x"], EXIT_USAGE),
        (["--reason", "x", "--token", HEX, "--at", "5"], EXIT_USAGE),
        (["--reason", "x", "--at", "yesterday"], EXIT_USAGE),
        (["--reason", "x", "--token", "82"], EXIT_STOP),
    ],
)
def test_set_refuses_what_is_not_a_place(store: PositionStore, arguments: list[str], code: int) -> None:
    before = store.load("orders")
    assert run(["position", "set", "orders", *arguments]) == code
    assert store.load("orders") == before


def test_a_stream_that_runs_is_left_alone(store: PositionStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.acquire("orders", "host/2", seconds=600)
    assert run(["position", "set", "orders", "--at", "5", "--reason", "x"]) == EXIT_UNAVAILABLE
    assert "orders is in use by host/2" in capsys.readouterr().err


def test_a_process_that_died_elsewhere_is_waited_for(store: PositionStore) -> None:
    store.acquire("orders", "another-machine/0/0/1/2", seconds=0.5)
    assert run(["position", "set", "orders", "--at", "5", "--reason", "x"]) == EXIT_UNAVAILABLE
    assert run(["position", "set", "orders", "--at", "5", "--reason", "x", "--wait", "60"]) == 0
    assert store.history("orders")[0].why == "x"


def test_export_and_import_into_another_store(store: PositionStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["position", "export", "--output", "positions.json"]) == 0
    assert run(["position", "import", "positions.json", "--reason", "move", "--store", "file:other"]) == 0
    capsys.readouterr()
    assert run(["position", "export", "--store", "file:other"]) == 0
    exported = printed(capsys)["orders"]
    original = json.loads(Path("positions.json").read_text())["orders"]
    own = ("writer", "epoch", "saved_at")
    assert {k: v for k, v in exported.items() if k not in own} == {k: v for k, v in original.items() if k not in own}
    with open_store("file:other") as other:
        assert other.history("orders")[0].why == "move"
        assert other.holder("orders") is None


def test_import_of_something_else(store: PositionStore, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.json").write_text('{"orders": {"form": 7}}')
    assert run(["position", "import", "other.json", "--reason", "x"]) == EXIT_STOP
    assert "position-invalid" in capsys.readouterr().err


def test_export_of_a_name_without_position(store: PositionStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["position", "export", "nothing"]) == EXIT_STOP
    assert "nothing has no position" in capsys.readouterr().err


def test_a_store_that_cannot_be_is_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["position", "show", "--store", "ftp://user:secret@host/"]) == EXIT_USAGE
    assert "secret" not in capsys.readouterr().err


def test_a_position_that_cannot_be_read_is_shown_as_such_and_set_again(
    store: PositionStore, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = store.cells.read("orders")
    assert whole is not None
    store.cells.swap("orders", whole, whole[:40], None)
    assert run(["position", "show"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("orders cannot be read: ")
    assert "tailrace position set" in told
    assert run(["position", "history", "orders"]) == 0
    assert "2023-11-02 04:09:51Z +7" in capsys.readouterr().out
    assert run(["position", "set", "orders", "--at", "2023-11-02 04:09:51Z", "--reason", "torn"]) == 0
    assert run(["position", "show", "orders"]) == 0
    assert "2023-11-02" in capsys.readouterr().out


def test_a_position_that_cannot_be_read_can_be_deleted(store: PositionStore) -> None:
    whole = store.cells.read("orders")
    store.cells.swap("orders", whole, b"{}", None)
    assert run(["position", "delete", "orders", "--reason", "torn"]) == 0
    assert store.load("orders") is None
