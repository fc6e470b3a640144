"""The site, built once for all tests of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT
from tailrace.owned import run_guarded


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = run_guarded(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    return folder
