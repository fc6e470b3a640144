"""Where log lines go: to stderr, as text or as JSON, from the level that the settings name."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from tailrace.settings import LogSettings


def configure_log(settings: LogSettings) -> None:
    """Set structlog up for this process; stdout stays free for what the verb prints."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last = structlog.processors.JSONRenderer() if settings.json_lines else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.level.upper()]),
        # Looked up anew for each line: a live display puts its own stderr there while it runs.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
