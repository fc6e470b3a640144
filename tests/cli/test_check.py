"""`tailrace check` on real oplogs: what it prints, and the exit codes that monitoring acts on."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bson import Timestamp

from tailrace.capture.positions import Counts, Position, open_store
from tailrace.capture.recovery.gaps import GapLedger, GapState
from tailrace.cli.app import run
from tailrace.stand import ReplicaSet
from tailrace.stand.ports import reserve_port
from tailrace.token import ResumeToken
from waiting import SECONDS
from webhook_server import Hook, serving


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'positions'}"


def save(store_url: str, name: str, time: Timestamp, **fields: Any) -> None:
    with open_store(store_url) as store:
        lease = store.acquire(name, "test")
        store.save(Position(None, time, **fields), lease)
        store.release(lease)


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the reports of one look."""
    code = run(["check", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_without_a_stream_it_shows_the_window(mongodb: ReplicaSet, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--uri", mongodb.uri]) == 0
    printed = capsys.readouterr().out
    assert "oplog of rs0" in printed
    assert "still filling up" in printed
    assert "consumer" not in printed


def test_looking_leaves_no_traces(
    mongodb: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["check", "--uri", mongodb.uri]) == 0
    assert run(["gaps"]) == 0
    assert run(["position", "show"]) == 0
    assert run(["recover", "--dry-run", "--uri", mongodb.uri, "--sink", f"file:{tmp_path / 'out.jsonl'}"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_stream_at_the_end_of_the_oplog_is_well(
    mongodb: ReplicaSet, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(store_url, "orders", mongodb.oplog_bounds()[1], counts=Counts(events=12))
    Path("tailrace.toml").write_text(f"[mongodb]\nuri = '{mongodb.uri}'\n[capture]\nposition_store = '{store_url}'")
    assert run(["check"]) == 0
    printed = capsys.readouterr().out
    assert "orders on rs0   OK   idle" in printed
    assert "headroom 100%" in printed
    assert "◆" in printed


def test_warning_and_critical_are_exit_codes_1_and_2(
    mongodb: ReplicaSet, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The oplog is nearly empty, so that the thresholds come down to the position instead of the other way round."""
    first, last = mongodb.oplog_bounds()
    save(store_url, "late", first)
    save(store_url, "early", last)
    where = ("--uri", mongodb.uri, "--store", store_url)
    assert checked(capsys, "late", *where)[1][0]["headroom_ratio"] > 0.5
    code, (report,) = checked(capsys, "late", *where, "--warn", "1e-9")
    assert (code, report["level"]) == (1, "warning")
    assert "of the oplog's capacity lies after the position" in report["reasons"][0]
    code, reports = checked(capsys, *where, "--warn", "1e-9", "--critical", "1e-9")
    assert code == 2
    assert {report["stream"]: report["level"] for report in reports} == {"early": "ok", "late": "critical"}


def test_lost_history_and_recovery(
    start_mongodb: Callable[..., ReplicaSet], store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    replica_set = start_mongodb(oplog_mb=1)
    lost_at = replica_set.oplog_bounds()[1]
    save(store_url, "orders", lost_at)
    where = ("--uri", replica_set.uri, "--store", store_url)
    first = replica_set.roll_over_oplog()
    code, (report,) = checked(capsys, "orders", *where)
    assert (code, report["lost"], report["headroom_ratio"]) == (2, True, 0)
    assert report["seconds_until_history_lost"] == 0
    assert report["position"] == {"t": lost_at.time, "i": lost_at.inc}
    assert run(["check", "orders", *where]) == 2
    assert "tailrace recover --dry-run" in capsys.readouterr().out

    with open_store(store_url) as store:
        ledger = GapLedger(store.cells, "orders")
        gap = ledger.record("history-lost", store.load("orders"))
        assert checked(capsys, "orders", *where)[1][0]["state"] != "recovering"
        ledger.change(gap, state=GapState.RECOVERING, first_known=first)
    assert checked(capsys, "orders", *where)[1][0]["state"] == "recovering"

    code, (report,) = checked(capsys, "--uri", replica_set.uri, "--at", f"{lost_at.time},{lost_at.inc}")
    assert (code, report["stream"], report["lost"]) == (2, "position", True)


def test_each_shard_is_judged_by_its_own_token(
    mongodb: ReplicaSet, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    last = mongodb.oplog_bounds()[1]
    behind = Timestamp(last.time - 1_000, 0)
    save(store_url, "orders", last, shards={"rs0": ResumeToken.high_water_mark(behind).to_bson()})
    _, (report,) = checked(capsys, "orders", "--uri", mongodb.uri, "--store", store_url)
    assert report["position"] == {"t": behind.time, "i": 0}
    assert report["state"] == "behind"


def test_over_some_seconds_a_trend_is_seen(
    mongodb: ReplicaSet, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(store_url, "orders", mongodb.oplog_bounds()[1])
    stop = threading.Event()

    def write() -> None:
        with mongodb.client() as client:
            while not stop.wait(0.05):
                client.admin.command({"appendOplogNote": 1, "data": {"padding": "x" * 10_000}})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        _, (report,) = checked(capsys, "orders", "--uri", mongodb.uri, "--store", store_url, "--over", "4")
    finally:
        stop.set()
        writer.join(timeout=SECONDS)
    assert report["written_bytes_per_second"] > 10_000
    assert report["consumer_speed"] == 0
    assert report["seconds_until_history_lost"] > 0


def test_watch_looks_again_serves_metrics_and_tells_log_and_webhook_once(
    mongodb: ReplicaSet, store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store_url, "watched", mongodb.oplog_bounds()[0])
    scraped: list[str] = []
    port = reserve_port()

    def scrape() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port.number}/metrics", timeout=120) as response:
            scraped.append(response.read().decode())

    hook = Hook(200, meanwhile=scrape)
    with serving(hook) as url:
        monkeypatch.setenv("TAILRACE_MONITOR__WEBHOOK_URL", url)
        flags = ["--watch", "--every", "0.1", "--polls", "3", "--warn", "1e-9", "--metrics-port", str(port.number)]
        code = run(["check", "--uri", mongodb.uri, "--store", store_url, *flags])
    port.release()
    printed = capsys.readouterr()
    assert code == 1
    assert printed.out.count("WARNING watched on rs0: ") == 3
    assert printed.err.count("tailrace WARNING: watched on rs0") == 1
    assert [(alert["stream"], alert["level"]) for alert in hook.got] == [("watched", "warning")]
    assert 'tailrace_headroom_ratio{shard="rs0",stream="watched"}' in scraped[0]


def test_watch_goes_on_while_the_server_is_away(
    start_mongodb: Callable[..., ReplicaSet],
    store_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica_set = start_mongodb()
    node = replica_set.primary
    save(store_url, "orders", replica_set.oplog_bounds()[0])
    monkeypatch.setenv("TAILRACE_MONGODB__TIMEOUT_SECONDS", "0.3")
    with serving(Hook(200, meanwhile=node.kill)) as url:
        monkeypatch.setenv("TAILRACE_MONITOR__WEBHOOK_URL", url)
        flags = ["--watch", "--every", "0.1", "--looks", "3", "--warn", "1e-9"]
        code = run(["check", "--uri", replica_set.uri, "--store", store_url, *flags])
    printed = capsys.readouterr()
    assert code == 69
    assert printed.out.count("WARNING orders on rs0: ") == 1
    assert printed.err.count("error[server-unreachable]: ") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--uri", "http://x"], 64, "not a MongoDB URI"),
        (["--store", "ftp://x", "--uri", "mongodb://127.0.0.1:1/"], 64, "no position store"),
        (["--warn", "2"], 64, "monitor.warn_ratio"),
        (["--warn", "0.9"], 64, "critical_ratio must not be below warn_ratio"),
        (["--at", "yesterday"], 64, "is not a time"),
    ],
)
def test_wrong_flags_are_one_line(
    arguments: list[str], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", *arguments]) == code
    printed = capsys.readouterr().err
    assert complaint in printed
    assert printed.count("\n") == 1


def test_a_server_that_does_not_answer_is_exit_code_69(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tailrace.toml").write_text(
        "[mongodb]\nuri = 'mongodb://user:hidden@127.0.0.1:1/'\ntimeout_seconds = 0.2"
    )
    assert run(["check"]) == 69
    printed = capsys.readouterr().err
    assert printed.startswith("error[server-unreachable]")
    assert "hidden" not in printed


def test_a_name_without_a_position_is_an_error(
    mongodb: ReplicaSet, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "nobody", "--uri", mongodb.uri, "--store", store_url]) == 78
    assert "no position for nobody" in capsys.readouterr().err
