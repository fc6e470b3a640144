"""Change data capture for MongoDB, from the oplog to the lakehouse."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.durable import consume, handler
    from tailrace.fold import apply_update
    from tailrace.watching import watch

__version__ = "0.1.0"
__all__ = ["__version__", "apply_update", "consume", "handler", "watch"]

_MODULES = {
    "apply_update": "tailrace.fold",
    "consume": "tailrace.durable",
    "handler": "tailrace.durable",
    "watch": "tailrace.watching",
}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is, so that programs that need none of it start fast."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
