"""Around the work of a task: archives on the import path are not read again and again."""

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from tailrace.spark.failures import task


def test_archives_leave_the_cache_and_can_still_be_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "some.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("first_in_archive.py", "")
        file.writestr("second_in_archive.py", "")
    monkeypatch.syspath_prepend(str(archive))
    importlib.import_module("first_in_archive")
    assert str(archive) in sys.path_importer_cache
    with task():
        assert str(archive) in sys.path_importer_cache
    assert str(archive) not in sys.path_importer_cache
    assert importlib.import_module("second_in_archive")
