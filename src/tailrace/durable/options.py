"""How a durable watch behaves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tailrace.capture.positions import PositionStore
from tailrace.driver.options import refuse_unknown
from tailrace.errors import SettingsError
from tailrace.settings_types import STREAM_NAME

_LEAST = {
    "batch_size": 1,
    "buffer_mb": 1,
    "commit_interval": 0,
    "lease_seconds": 0.001,
    "lease_timeout": 0,
    "retry_seconds": 0,
}
_WHOLE = ("batch_size", "buffer_mb")


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableOptions:
    """How a durable watch behaves. Only `store` is required."""

    store: str | PositionStore
    """Where the position is kept: file:folder, postgresql://, mongodb://, kafka://, redis://, or an open store."""
    name: str | None = None
    """The stream's name in the store; default the namespace. Of one name one process delivers, others stand by."""
    pipeline: Sequence[Mapping[str, Any]] = ()
    """Stages that the server applies to events; keep `_id`."""
    batch_size: int = 1
    """The most events that are handed over, and acknowledged, together."""
    start: str = "now"
    """Where a stream without a position begins: `now`, or `snapshot`, which gives every document first."""
    full_document: str | None = None
    """updateLookup, whenAvailable or required, as for `watch`."""
    full_document_before_change: str | None = None
    """whenAvailable or required, as for `watch`."""
    recover: bool = False
    """Whether lost history is recovered by a snapshot; needs `inventory`. Otherwise the stream ends with `GapOpen`."""
    inventory: str | None = None
    """File that keeps the captured keys, with which a recovery finds the deletes made in a gap."""
    until_idle: bool = False
    """End when everything up to the moment of the start was handed over, instead of following the stream."""
    buffer_mb: int = 16
    """Size of the read-ahead buffer."""
    commit_interval: float = 0.1
    """Least seconds between two saves of the position."""
    lease_seconds: float = 30.0
    """Lease time-to-live: after so long without a sign of life another process takes over."""
    lease_timeout: float = float("inf")
    """How long to stand by for a lease that another process holds, before `LeaseHeld` is raised."""
    retry_seconds: float = 600.0
    """Retry budget of an outage of MongoDB or of the store."""

    def __post_init__(self) -> None:
        if self.start not in ("now", "snapshot"):
            raise SettingsError(f"start is 'now' or 'snapshot', not {self.start!r}", hint="Choose one of them.")
        if not isinstance(self.store, str | PositionStore):
            hint = "Give an address as text, such as store='file:orders.pos', or an open PositionStore."
            raise SettingsError(f"store is no address of a position store: {self.store!r}", hint=hint)
        if self.name is not None and not (isinstance(self.name, str) and re.match(STREAM_NAME, self.name)):
            hint = "Leave it out for the name of the collection."
            raise SettingsError(f"name is a text that does not begin with ~, not {self.name!r}", hint=hint)
        for name, least in _LEAST.items():
            refuse_number(name, getattr(self, name), least, int if name in _WHOLE else float)
        if self.recover and self.inventory is None:
            hint = "Give inventory='orders.keys', a file that this stream alone uses from its first event on."
            raise SettingsError("recover needs an inventory to find the deletes made in a gap", hint=hint)

    @classmethod
    def of(cls, call: str, options: Mapping[str, Any]) -> DurableOptions:
        """Take the options of a call, which an error names; a misspelt option is refused, and a missing store."""
        refuse_unknown(call, options, {field.name for field in fields(cls)})
        if "store" not in options:
            raise TypeError(f"{call} needs a store for its position, such as store='file:orders.pos'")
        return cls(**options)


def refuse_number(name: str, value: Any, least: float, kind: type) -> None:
    """Raise for what is no number, or a smaller one; NaN is smaller than none and refused as well."""
    allowed = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed) or not value >= least:
        number = "a whole number" if kind is int else "a number"
        raise SettingsError(
            f"{name} is {number} of at least {least}, not {value!r}", hint="Leave it out for the default."
        )
