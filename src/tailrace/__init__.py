"""Change data capture for MongoDB, from the oplog to the lakehouse."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.driver import watch

__version__ = "0.1.0"
__all__ = ["__version__", "watch"]


def __getattr__(name: str) -> object:
    """Import the driver when it is first asked for, so that programs that need none of it start fast."""
    if name == "watch":
        from tailrace.driver import watch

        return watch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
