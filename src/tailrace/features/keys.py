"""The names of the keys in Redis. In a cluster all keys of an entity are in one slot, where one script reaches them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MARKERS: Final = 128
"""So many slots of a cluster have a copy of the progress: whichever server loses its last writes loses those of a copy.
A server with none of them has about a hundredth of the slots or less."""


@dataclass(frozen=True, slots=True)
class KeyNames:
    """The names that belong to one definition.

    No key of a document can be that of an entity, because no definition has a # in its name.
    """

    prefix: str
    is_cluster: bool = False

    @property
    def definition(self) -> str:
        """Where the definition is left for readers."""
        return f"{self.prefix}:definition"

    @property
    def progress(self) -> str:
        """The hash that says which batch is in the features."""
        return f"{self.prefix}:progress"

    @property
    def progress_copies(self) -> list[str]:
        """Keys all over a cluster that say the same; none on a single server."""
        return [f"{self.prefix}#progress:{{{number}}}" for number in range(_MARKERS)] if self.is_cluster else []

    def entity(self, text: str) -> str:
        """How all keys of an entity begin."""
        return f"{self.prefix}:{self._tagged(text)}"

    def document(self, id_: str) -> str:
        """Give the key that says which entity has a document."""
        return f"{self.prefix}#doc:{self._tagged(id_)}"

    def document_id(self, key: str) -> str:
        """Give the document of such a key."""
        id_ = key.removeprefix(f"{self.prefix}#doc:")
        return id_[1:-1].removeprefix("~.") if self.is_cluster else id_

    def ended(self, namespace: str) -> str:
        """Give the key that says when a collection ended."""
        return f"{self.prefix}#ended" + (f":{namespace}" if namespace else "")

    def _tagged(self, text: str) -> str:
        """Put a text into braces in a cluster: the slot goes by what is in the first ones, unless that is nothing."""
        if not self.is_cluster:
            return text
        return "{~." + text + "}" if not text or text.startswith(("}", "~.")) else "{" + text + "}"
