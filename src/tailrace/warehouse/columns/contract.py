"""What was agreed about a collection's table."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.errors import SettingsError
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.columns.choice import WHOLE, Choice
from tailrace.warehouse.columns.evolution import MOST_LEVELS
from tailrace.warehouse.columns.shapes import Columns, parse_columns


class Contract(StrEnum):
    """What drift does to a table."""

    EVOLVE = "evolve"
    """Columns are added and widened; a value that fits nowhere is in `_rest`."""
    JSON = "json"
    """One column has the document as JSON: nothing can drift."""
    VARIANT = "variant"
    """The same in a column of the type VARIANT, whose fields engines read without parsing a text."""
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
    choice: Choice = WHOLE

    @property
    def has_one_column(self) -> bool:
        """Whether a document is in one column."""
        return self.contract in (Contract.JSON, Contract.VARIANT)

    @property
    def has_chosen_columns(self) -> bool:
        """Whether the columns are those that the settings name, and no others."""
        return bool(self.choice.paths)

    @classmethod
    def of(cls, settings: WarehouseSettings, namespace: str) -> Rules:
        """Read the settings for one collection."""
        contract = _contract(settings.contracts.get(namespace, settings.contract))
        choice, chosen = Choice.parse(settings.columns.get(namespace, {}), settings.excluded.get(namespace, ""))
        declared = parse_columns(settings.declared.get(namespace, ""))
        _check(namespace, contract, chosen, declared)
        if len(chosen) > settings.max_columns:
            hint = f"Choose fewer, or set warehouse.max_columns to {len(chosen)}."
            raise SettingsError(
                f"{namespace} has {len(chosen)} chosen columns, and {settings.max_columns} may be", hint=hint
            )
        return cls(
            contract,
            chosen or declared,
            settings.on_drift == "dead-letter",
            settings.deletes == "mark",
            Ends(settings.ends),
            settings.max_columns,
            settings.rewrite_rows,
            settings.max_levels,
            choice,
        )


def _check(namespace: str, contract: Contract, chosen: Columns, declared: Columns) -> None:
    """Refuse what contradicts itself."""
    if chosen and contract in (Contract.JSON, Contract.VARIANT):
        hint = "Choose columns with the contract evolve or strict."
        raise SettingsError(
            f"warehouse.columns of {namespace} and the contract {contract} exclude each other", hint=hint
        )
    if chosen and declared:
        hint = "Keep one of them: declared columns have the structure of the documents, chosen ones are flat."
        raise SettingsError(f"{namespace} is in warehouse.columns and in warehouse.declared", hint=hint)


def _contract(name: str) -> Contract:
    try:
        return Contract(name)
    except ValueError:
        raise SettingsError(f"there is no contract {name!r}", hint=f"Choose {', '.join(Contract)}.") from None
