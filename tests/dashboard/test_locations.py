"""Folders on the page: short where they can be, and never with a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.dashboard.answers import shown_folder


def test_a_folder_below_is_shown_as_seen_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_folder(str(tmp_path / "run" / "warehouse")) == "run/warehouse"
    assert shown_folder(f"file://{tmp_path}/run") == "run"
    assert shown_folder("run") == "run"


@pytest.mark.parametrize("folder", ["/srv/warehouse", "s3a://bucket/warehouse"])
def test_a_folder_elsewhere_is_shown_as_it_is_set(folder: str) -> None:
    assert shown_folder(folder) == folder


def test_a_password_is_not_shown() -> None:
    assert "secret" not in shown_folder("hdfs://user:secret@host/warehouse")
