"""Wheels are fetched once, verified, and never used half-finished."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tailrace.errors import ChecksumMismatch, DownloadFailed
from tailrace.stand import cache
from tailrace.stand.cache import SourceDistribution, Wheel, cache_folder, made_once, unpacked_source, unpacked_wheel
from waiting import SECONDS

SMALL = Wheel("iniconfig", "2.1.0", "9deba5723312380e77435581c6bf4935c94cbfab9b1ed33ef8d238ea168eb760", platform="any")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TAILRACE_CACHE", str(tmp_path / "cache"))


def test_a_wheel_is_fetched_once_and_unpacked(monkeypatch, capsys):
    folder = unpacked_wheel(SMALL)
    assert (folder / "iniconfig" / "__init__.py").exists()
    assert "fetched iniconfig 2.1.0" in capsys.readouterr().err
    monkeypatch.setattr(cache, "_download", lambda *_: pytest.fail("fetched twice"))
    assert unpacked_wheel(SMALL) == folder


def test_another_file_than_the_pinned_one_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(ChecksumMismatch, match="expected 000"):
        unpacked_wheel(replace(SMALL, sha256="000"))
    assert [path.name for path in cache_folder().iterdir() if path.is_dir()] == []


def test_a_package_that_does_not_exist_gives_a_clear_error():
    with pytest.raises(DownloadFailed, match="pip could not fetch"):
        unpacked_wheel(replace(SMALL, version="0.0.999"))


SOURCE = SourceDistribution("iniconfig", "2.1.0", "3abbd2e30b36733fee78f9c7f7308f2d0050e88f0087fd25c2645f63c773e1c7")


def test_a_source_distribution_is_unpacked():
    assert (unpacked_source(SOURCE) / "src" / "iniconfig" / "__init__.py").exists()


def test_a_half_finished_folder_is_never_seen():
    def fail_halfway(folder):
        (folder / "half").write_text("half")
        raise OSError("the network went away")

    with pytest.raises(OSError, match="went away"):
        made_once("thing", fail_halfway)
    made = made_once("thing", lambda folder: (folder / "whole").write_text("whole") and None)
    assert [path.name for path in made.iterdir()] == ["whole"]


def test_two_who_ask_at_once_make_it_once():
    made = []

    def fill(folder):
        made.append(folder)
        (folder / "file").write_text("x")

    threads = [threading.Thread(target=made_once, args=("shared", fill)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(made) == 1
