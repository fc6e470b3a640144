"""One way to log: an event's name and key-values, by structlog, under names below `tailrace`.

The command line configures structlog. Inside of somebody else's program nobody may have done so, and structlog would
print to stdout: there lines go to Python's own `logging`.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

_PROCESSORS: list[Any] = [
    structlog.stdlib.filter_by_level,
    structlog.processors.KeyValueRenderer(key_order=["event"], drop_missing=True),
]


class _Logger:
    """Chooses at each call, because modules make their loggers before a program configures anything."""

    def __init__(self, name: str) -> None:
        self._fallback: Any = structlog.wrap_logger(
            logging.getLogger(name), processors=_PROCESSORS, wrapper_class=structlog.stdlib.BoundLogger
        )

    def __getattr__(self, method: str) -> Any:
        return getattr(structlog.get_logger() if structlog.is_configured() else self._fallback, method)


def get_logger(name: str = "tailrace") -> Any:
    """Give the logger of a package."""
    return _Logger(name)
