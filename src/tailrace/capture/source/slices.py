"""Slices: one stream shared by several processes, each taking the documents whose key hashes to its part."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from tailrace.errors import SettingsError
from tailrace.event import ChangeEvent


@dataclass(frozen=True, slots=True)
class Slice:
    """Part `number` (from 1) of `of`; a document is always in the same one, so its events stay in order."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Read `2/4`."""
        number, slash, of = text.partition("/")
        if not (slash and number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
            raise SettingsError(f"{text!r} is no slice", hint="Write which part of how many, like 2/4.")
        return cls(int(number), int(of))

    @property
    def is_whole(self) -> bool:
        """Whether there is only one part."""
        return self.of == 1

    def has_key(self, document_key: bytes) -> bool:
        """Whether the document with this key (a BSON document) belongs here."""
        return crc32(document_key) % self.of == self.number - 1

    def keep(self, events: list[bytes]) -> list[bytes]:
        """Keep the events of this slice; those without a document (drop, rename, ...) belong to the first."""
        if self.is_whole:
            return events
        return [event for event in events if self._has(event)]

    def _has(self, event: bytes) -> bool:
        key = ChangeEvent(event).document_key
        return self.number == 1 if key is None else self.has_key(key)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Slice(1, 1)
