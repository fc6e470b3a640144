"""Every release of pymongo that we support does what we need of it, by its private names or without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pymongo
import pytest

from tailrace.owned import run_guarded
from tailrace.stand.cache import made_once
from tailrace.stand.replica_set import ReplicaSet
from waiting import SECONDS

OLDEST, NEWEST = "4.9", "4.19.0"
CONTRACT = Path(__file__).with_name("contract.py")


def install(requirement: str, folder: Path) -> None:
    """Put a release of pymongo alone into a folder, for the search path."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    assert run_guarded([*pip, "--target", str(folder), requirement], timeout=600).returncode == 0


def release(version: str) -> Path:
    """The folder of a release, fetched once."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return made_once(f"pymongo-{version}-{tag}", lambda folder: install(f"pymongo=={version}", folder))


def kept(uri: str, folder: Path | None, *words: str) -> dict[str, object]:
    """Run the contract with a release, and give what it printed."""
    path = {} if folder is None else {"PYTHONPATH": str(folder)}
    ran = run_guarded(
        [sys.executable, str(CONTRACT), uri, *words],
        env={**os.environ, **path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    result: dict[str, object] = json.loads(ran.stdout)
    return result


@pytest.mark.parametrize(
    ("version", "words", "module"),
    [
        pytest.param(OLDEST, (), "public", id="oldest"),
        pytest.param(None, (), "private", id="locked"),
        pytest.param(None, ("public",), "public", id="locked-without-private-names"),
        pytest.param(NEWEST, (), "private", id="newest"),
    ],
)
def test_a_release_does_what_we_need(
    mongodb: ReplicaSet, version: str | None, words: tuple[str, ...], module: str
) -> None:
    folder = None if version is None else release(version)
    assert kept(mongodb.uri, folder, *words) == {
        "pymongo": version or pymongo.version,
        "module": module,
        "single": [0, 1, 2],
        "after a lost cursor": [3, 4],
        "large batches": True,
        "resumed": True,
        "nothing": None,
        "refused": 20,
        "tail": [1000, 1001, 1002, 1003, 1004],
        "async": True,
    }


@pytest.mark.long
def test_the_release_of_today_does_too(mongodb: ReplicaSet, tmp_path: Path) -> None:
    """`make clients`: whatever release is the newest now, which may fall back to the public API."""
    install("pymongo", tmp_path)
    assert kept(mongodb.uri, tmp_path)["resumed"] is True
