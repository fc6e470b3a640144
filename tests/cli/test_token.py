"""`tailrace token` as a user types it."""

from __future__ import annotations

import json

import pytest
from bson import Timestamp

from tailrace.cli.app import run
from tailrace.token import ResumeToken

DOUBLE = "826AFA052E000000082B022C0100296E5A10043F754964A6E94EACA906038800FDBCFD461E5F6964002B060004"
MARK = "826AFA0557000000862B0229296E04"


def test_decode_shows_the_event(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "decode", DOUBLE, "--type-bits", "QA=="]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines == {
        "tokenType": "event",
        "clusterTime": "1794770222,8",
        "date": "2026-11-15T19:17:02Z",
        "version": "1",
        "txnOpIndex": "0",
        "fromInvalidate": "false",
        "uuid": "3f754964-a6e9-4eac-a906-038800fdbcfd",
        "eventIdentifier": '{"_id": 3.0}',
    }


def test_decode_takes_a_whole_token_and_gives_json(capsys: pytest.CaptureFixture[str]) -> None:
    token = {"_data": DOUBLE, "_typeBits": {"$binary": {"base64": "QA==", "subType": "00"}}}
    assert run(["token", "decode", json.dumps(token), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["clusterTime"] == {"$timestamp": {"t": 1794770222, "i": 8}}
    assert shown["eventIdentifier"] == {"_id": 3.0}


def test_decode_shows_a_high_water_mark(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "decode", MARK]) == 0
    assert "high water mark" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zz"], "not a valid hex string"),
        (["82"], "past end of buffer"),
        (["{"], "not JSON"),
        (["{}"], "_data of missing"),
        ([MARK, "--type-bits", "?"], "not base64"),
    ],
)
def test_a_bad_token_is_told(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "decode", *arguments]) == 78
    error = capsys.readouterr().err
    assert error.startswith("error[resume-token-invalid]:")
    assert message in error


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1777636800", Timestamp(1777636800, 0)),
        ("1777636800,7", Timestamp(1777636800, 7)),
        ("2026-05-01T12:00:00Z", Timestamp(1777636800, 0)),
        ("2026-05-01T14:00:00+02:00", Timestamp(1777636800, 0)),
        ("2026-05-01 12:00", Timestamp(1777636800, 0)),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_encode_makes_a_mark_at_a_time(
    text: str, time: Timestamp, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["token", "encode", "--at", text, "--version", str(version)]) == 0
    token = ResumeToken.parse(json.loads(capsys.readouterr().out))
    assert token == ResumeToken.high_water_mark(time, version)


@pytest.mark.parametrize("text", ["yesterday", "1,2,3", "-5", "99999999999"])
def test_a_bad_time_is_told(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "encode", "--at", text]) == 64
    assert "is not a time" in capsys.readouterr().err
