"""From the setting `capture.position_store` to a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tailrace.capture.positions.store import PositionStore
from tailrace.errors import SettingsError
from tailrace.extras import require_client
from tailrace.settings import masked

if TYPE_CHECKING:
    from tailrace.capture.positions.store import Cells


_KNOWN = "Use file:, postgresql://, mongodb://, kafka:// or redis://."


def open_store(url: str) -> PositionStore:
    """Open the store at a URL: file:, postgresql://, mongodb://, kafka:// or redis://.

    The servers are asked for nothing yet, so this fails only for a URL that cannot be right.
    """
    return PositionStore(_open_cells(url))


def _open_cells(url: str) -> Cells:
    try:
        scheme = urlsplit(url).scheme
        require_client(url, f"the position store {scheme}://")
        if scheme == "file":
            from tailrace.capture.positions.file import FileCells

            return FileCells(Path(unquote(url.removeprefix("file:").removeprefix("//"))))
        if scheme in ("postgresql", "postgres"):
            from tailrace.capture.positions.postgresql import PostgresCells

            return PostgresCells(url)
        if scheme in ("mongodb", "mongodb+srv"):
            from tailrace.capture.positions.mongodb import MongoCells

            return MongoCells(url)
        if scheme == "kafka":
            from tailrace.capture.kafka_address import KafkaAddress
            from tailrace.capture.positions.kafka import KafkaCells

            return KafkaCells(KafkaAddress.parse(url))
        if scheme in ("redis", "rediss"):
            from tailrace.capture.positions.redis import RedisCells

            return RedisCells(url)
    except ValueError as error:  # an address that is none, such as one with half a bracket
        raise SettingsError(f"capture.position_store: {masked(url)} is no URL: {error}", hint=_KNOWN) from None
    raise SettingsError(f"no position store is known for {masked(url)!r}", hint=_KNOWN)
