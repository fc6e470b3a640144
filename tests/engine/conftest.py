"""The engine's behaviour suites run over both implementations of its first stages."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["kernel", "python"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make events in the compiled kernel, or by the Python reference."""
    name: str = request.param
    if name == "kernel":
        pytest.importorskip("tailrace_kernel")
    monkeypatch.setenv("TAILRACE_KERNEL", "on" if name == "kernel" else "off")
    return name
