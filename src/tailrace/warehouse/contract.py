"""What was agreed about a collection's table."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.errors import SettingsError
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.evolution import MOST_LEVELS
from tailrace.warehouse.shapes import Columns, parse_columns


class Contract(StrEnum):
    """What drift does to a table."""

    EVOLVE = "evolve"
    """Columns are added and widened; a value that fits nowhere is in `_rest`."""
    JSON = "json"
    """One column has the document as JSON: nothing can drift."""
    STRICT = "strict"
    """The columns stay as they are; a document that does not fit stops the job, or becomes a dead letter."""


class Ends(StrEnum):
    """What drop, rename and dropDatabase do to a mirror."""

    KEEP = "keep"
    """Its rows stay."""
    FOLLOW = "follow"
    """Its rows leave, or move to the mirror of the new name."""
    DROP = "drop"
    """The same, and the table that is empty now is dropped."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that was agreed about one collection."""

    contract: Contract = Contract.EVOLVE
    declared: Columns = field(default_factory=dict)
    dead_letters_drift: bool = False
    """Whether `strict` makes dead letters instead of stopping."""
    marks_deletes: bool = False
    ends: Ends = Ends.FOLLOW
    max_columns: int = 400
    rewrite_rows: int = 5_000_000
    max_levels: int = MOST_LEVELS

    @classmethod
    def of(cls, settings: WarehouseSettings, namespace: str) -> Rules:
        """Read the settings for one collection."""
        return cls(
            _contract(settings.contracts.get(namespace, settings.contract)),
            parse_columns(settings.declared.get(namespace, "")),
            settings.on_drift == "dead-letter",
            settings.deletes == "mark",
            Ends(settings.ends),
            settings.max_columns,
            settings.rewrite_rows,
            settings.max_levels,
        )


def _contract(name: str) -> Contract:
    try:
        return Contract(name)
    except ValueError:
        raise SettingsError(f"there is no contract {name!r}", hint=f"Choose {', '.join(Contract)}.") from None
