"""The keys that were captured before: what deletes made in a gap are found with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator


class KeyInventory(ABC):
    """Knows the documents that the sink has, by collection."""

    description: str

    @abstractmethod
    def namespaces(self) -> list[str]:
        """Give the collections that something was captured of."""

    @abstractmethod
    def keys(self, namespace: str) -> Iterator[bytes]:
        """Give the documentKey of every document that the sink has, as BSON; each at least once."""
