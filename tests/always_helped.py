"""Streams that are read by the other process from their second batch on, and to their end, without being far behind."""

from __future__ import annotations

from typing import Any

from tailrace.capture.source import catch_up as catching_up
from tailrace.capture.source.engine_process import EngineProcess


def always_help(patch: Any = setattr) -> None:
    """Change when help is called for; `patch` is `setattr`, or that of a test which is undone."""
    patch(catching_up, "_FAR_SECONDS", 0)
    patch(catching_up, "_FAR_BATCHES", 1)
    patch(catching_up, "_NEAR_SECONDS", -1)
    patch(catching_up, "_cores", lambda: 2)
    patch(EngineProcess, "is_ready", property(lambda process: bool(process._news.poll(30_000))))
