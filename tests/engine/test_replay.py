"""What real servers made of real oplogs, the engine makes too."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.engine.recording import group_files, read_recording
from tailrace.engine.replay import READS_DOCUMENTS, replay
from tailrace.errors import RecordingInvalid

pytestmark = pytest.mark.usefixtures("implementation")


@pytest.mark.parametrize("name", ["4.2.6", "5.0.4", "6.0.5", "7.0.28", "sharded-6.0.5"])
def test_the_engine_agrees_with_the_server_in_everything(recordings: Path, name: str) -> None:
    [files] = group_files([recordings / f"{name}.jsonl.gz"])
    identical = 0
    for result in replay(read_recording(files)):
        assert not result.differences, str(result.differences[0])
        assert set(result.skipped) <= {READS_DOCUMENTS}
        identical += result.identical
    assert identical > 2_000


def test_an_extra_file_brings_its_main_file(recordings: Path) -> None:
    main, extra = recordings / "6.0.5.jsonl.gz", recordings / "6.0.5.extra.jsonl.gz"
    assert group_files([extra]) == group_files([main, extra]) == [[main, extra]]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def _cut_recording(recordings: Path, change: dict[str, Any], tmp_path: Path) -> Path:
    """Write the sharded recording again with one line changed."""
    lines = _lines(recordings / "sharded-6.0.5.jsonl.gz")
    at = next(n for n, line in enumerate(lines) if line["kind"] == change["kind"])
    lines[at] |= change
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"kind": "event", "bson": "BQAAAAA="}, "event 0"),
        ({"kind": "batch", "pbrt": {"_data": "8200"}}, "batch up to event 31"),
        ({"kind": "batch", "alive": False}, "batch up to event 31"),
        ({"kind": "stream", "error": {"code": 9, "codeName": "X", "labels": [], "msg": "m"}}, "error"),
    ],
)
def test_every_difference_is_found(recordings: Path, tmp_path: Path, change: dict[str, Any], what: str) -> None:
    recording = read_recording([_cut_recording(recordings, change, tmp_path)])
    differences = [found for result in replay(recording) for found in result.differences]
    assert [found.what for found in differences] == [what]
    assert differences[0].server != differences[0].engine


def test_a_recording_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"kind": "oplog"}\n')
    with pytest.raises(RecordingInvalid, match="line 1"):
        read_recording([path])
    with pytest.raises(RecordingInvalid, match="cannot be read"):
        read_recording([tmp_path / "absent.jsonl.gz"])
