"""The door to the compiled kernel: which of the two runs is chosen by a variable, and said."""

from __future__ import annotations

import pytest

from tailrace import kernel
from tailrace.cli.app import run
from tailrace.errors import SettingsError


def test_off_leaves_it_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TAILRACE_KERNEL", "off")
    assert kernel.module() is None
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.endswith("python (TAILRACE_KERNEL=off)\n")


def test_it_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tailrace_kernel")
    monkeypatch.setenv("TAILRACE_KERNEL", "on")
    found = kernel.module()
    assert found is not None
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.endswith(f"kernel {found.__version__}\n")


def test_on_refuses_to_run_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_KERNEL", "on")
    monkeypatch.setattr(kernel, "_load", lambda: (None, "python (it is not there)"))
    kernel._choose.cache_clear()
    with pytest.raises(SettingsError, match="it is not there"):
        kernel.module()
    kernel._choose.cache_clear()


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_KERNEL", "fast")
    with pytest.raises(SettingsError, match="fast"):
        kernel.module()
