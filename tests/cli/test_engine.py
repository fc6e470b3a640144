"""`tailrace engine replay` over recordings of real servers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tailrace.cli.app import run


def test_the_last_line_counts_and_the_exit_code_tells(recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recordings / "sharded-6.0.5.jsonl.gz"
    assert run(["engine", "replay", str(recording)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2300 identical, 0 different, 0 skipped"


def test_json_counts_per_stream_and_operation_type(recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recordings / "sharded-6.0.5.jsonl.gz"
    assert run(["engine", "replay", "--json", str(recording)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["operation_types"]["insert"] == sum(
        stream["operation_types"].get("insert", 0) for stream in report["streams"]
    )
    assert report["identical"] == sum(stream["identical"] for stream in report["streams"]) == 2300


def test_a_difference_is_shown_with_both_versions(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = recordings / "sharded-6.0.5.jsonl.gz"
    lines = gzip.decompress(recording.read_bytes()).decode().splitlines()
    at = next(n for n, line in enumerate(lines) if json.loads(line)["kind"] == "event")
    lines[at] = json.dumps(json.loads(lines[at]) | {"bson": "BQAAAAA="})
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join(lines))
    assert run(["engine", "replay", str(changed)]) == 1
    shown = capsys.readouterr().out
    assert "changed shA/cluster@beforeDrop:direct: event 0\n  server: {}\n  engine: {" in shown
    assert shown.splitlines()[-1] == "2299 identical, 1 different, 0 skipped"
