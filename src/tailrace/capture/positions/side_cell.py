"""Small durable documents that lie beside the positions, in the same store: the ledger of gaps, snapshot plans.

They are cells of the position store under names that begin with `~`, so every store that can keep a position keeps
them too, with the same compare-and-set and the same durability.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from tailrace.capture.positions.store import BESIDE, Cells
from tailrace.errors import PositionInvalid

_CONFLICTS_BEFORE_GIVING_UP = 20


class SideCell:
    """One document under one name; its changes are atomic."""

    def __init__(self, cells: Cells, kind: str, stream: str) -> None:
        self._cells = cells
        self.name = f"{BESIDE}{kind}~{stream}"

    def read(self) -> dict[str, Any] | None:
        """Give the document, or None when there is none yet."""
        return _parsed(self.name, self._cells.read(self.name))

    def update(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Replace the document (an empty one at first) by what `change` makes of it; durable when it returns."""
        for _ in range(_CONFLICTS_BEFORE_GIVING_UP):
            before = self._cells.read(self.name)
            document = change(_parsed(self.name, before) or {})
            # The counter makes every cell differ from every earlier one, as compare-and-set needs it.
            counter = (orjson.loads(before)["counter"] if before else 0) + 1
            after = orjson.dumps({"counter": counter, "document": document})
            if self._cells.swap(self.name, before, after, None):
                return document
        raise PositionInvalid(f"others keep changing {self.name}")


def stream_of(name: str, kind: str) -> str | None:
    """Give the stream that a cell of this kind belongs to; None for other cells."""
    start = f"{BESIDE}{kind}~"
    return name.removeprefix(start) if name.startswith(start) else None


def _parsed(name: str, cell: bytes | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    try:
        document: dict[str, Any] = orjson.loads(cell)["document"]
    except (ValueError, KeyError, TypeError) as error:
        raise PositionInvalid(f"what the store holds as {name} cannot be read: {error}") from None
    return document
