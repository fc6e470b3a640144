"""The run folder holds one run, and never empties a folder that is not one."""

from __future__ import annotations

import pytest

from tailrace.errors import AlreadyUp, SettingsError
from tailrace.settings import Settings
from tailrace.up.folder import RunFolder


def test_each_run_begins_with_an_empty_folder_and_leaves_its_logs(tmp_path):
    with RunFolder(tmp_path / "up") as folder:
        folder.log_of("features fraud").write_text("said")
        (folder.path / "kafka" / "data").mkdir(parents=True)
    assert (tmp_path / "up" / "logs" / "features-fraud.log").read_text() == "said"
    assert not (tmp_path / "up" / "tmp").exists()
    with RunFolder(tmp_path / "up") as folder:
        assert sorted(path.name for path in folder.path.iterdir()) == ["logs", "tmp", "up.lock"]
        assert not any(folder.logs.iterdir())


def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    with RunFolder(tmp_path) as folder, pytest.raises(AlreadyUp), RunFolder(tmp_path):
        pass
    assert folder.logs.exists()


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SettingsError, match="did not put there"), RunFolder(tmp_path):
        pass
    assert (tmp_path / "thesis.txt").exists()


def test_nobody_else_may_read_the_settings(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.write_settings(Settings())
        assert folder.settings_file.stat().st_mode & 0o077 == 0
