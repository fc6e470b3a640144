"""Where log lines go: to stderr, as text for a terminal and as JSON for all else, from the level of the settings."""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import Any

import structlog

from tailrace.masking import shown
from tailrace.settings import LogSettings

_NUMBERS = re.compile(r"\d+")
_SECONDS_BETWEEN_EQUAL_LINES = 30.0
_MOST_TEXTS = 256


def configure_log(settings: LogSettings) -> None:
    """Set structlog up for this process; stdout stays free for what the verb prints."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _, __, event: shown(event),
    ]
    as_json = settings.json_lines if settings.json_lines is not None else not sys.stderr.isatty()
    last = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.level.upper()]),
        logger_factory=lambda *_: _StderrLines(),
        cache_logger_on_first_use=False,
    )
    _bridge(settings.level)


def _bridge(level: str) -> None:
    """Bring what libraries log, librdkafka's client and OpenTelemetry among them, into the same form."""
    root = logging.getLogger()
    root.handlers = [*(each for each in root.handlers if not isinstance(each, _Bridge)), _Bridge()]
    ours = logging.getLogger("tailrace")
    ours.handlers = [_Bridge()]
    ours.propagate = False
    ours.setLevel(level.upper())


class _Bridge(logging.Handler):
    """Gives the records of Python's own logging to structlog; the same text comes at most twice a minute.

    librdkafka repeats what it has to say of a broker many times a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; a record that cannot be formatted is no reason to stop."""
        try:
            text = record.getMessage()
            if self._is_new(f"{record.name} {_NUMBERS.sub('#', text)}"):
                write = getattr(structlog.get_logger(), record.levelname.lower())
                write(text, logger=record.name)
        except Exception:
            self.handleError(record)

    def _is_new(self, text: str) -> bool:
        now = time.monotonic()
        if now - self._last.get(text, -_SECONDS_BETWEEN_EQUAL_LINES) < _SECONDS_BETWEEN_EQUAL_LINES:
            return False
        if len(self._last) >= _MOST_TEXTS:
            self._last.clear()
        self._last[text] = now
        return True


class _StderrLines:
    """Writes lines to stderr, and goes on when that cannot be written: a full disk must not stop a stream."""

    _lost = 0

    def msg(self, line: str) -> None:
        """Write a line; how many were lost before is said with the next that can be written."""
        try:
            if _StderrLines._lost:
                self._write(f"{_StderrLines._lost} lines of the log could not be written")
                _StderrLines._lost = 0
            self._write(line)
        except (OSError, ValueError):  # ValueError: stderr is closed
            _StderrLines._lost += 1

    debug = info = warning = error = critical = exception = msg

    @staticmethod
    def _write(line: str) -> None:
        # Looked up anew for each line: a live display puts its own stderr there while it runs.
        print(line, file=sys.stderr, flush=True)
