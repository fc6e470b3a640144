"""What is captured: namespaces (exact names, databases, regular expressions) as one filter, and slices of documents.

The default stream is of cluster scope with this filter in its pipeline: unlike a collection's own stream it is never
invalidated when a collection is dropped or renamed. A slice is one process's share of a stream that several read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
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


INTERNAL_DATABASES = frozenset({"admin", "config", "local"})
_TEMPORARY = r"tmp\.(agg_out|mr)\.|tmp.{5}\.convertToCapped\."
"""How the server's own collections begin that `$out`, mapReduce and convertToCapped fill and then rename. Not all of
their documents have events, so they are never captured: what was renamed is read under its new name."""
_is_temporary = re.compile(_TEMPORARY).match
NOT_TEMPORARY: Mapping[str, Any] = {
    "$or": [{"ns.coll": {"$not": {"$regex": f"^({_TEMPORARY})"}}}, {"operationType": "rename"}]
}
"""The filter that leaves out the events of temporary collections, but not their renames."""


def _full_name(field: str) -> Mapping[str, Any]:
    """Make the expression for `db.collection` of the field `ns`, or of `to`, which only a rename has."""
    return {"$concat": [{"$ifNull": [f"${field}.db", ""]}, ".", {"$ifNull": [f"${field}.coll", ""]}]}


@dataclass(frozen=True, slots=True)
class Namespaces:
    """A choice of namespaces; an empty one means all of them."""

    collections: tuple[str, ...] = ()
    """Full names, `db.collection`."""
    databases: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    """Regular expressions that match whole names, `db.collection`."""

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Namespaces:
        """Read what a user wrote: `db.collection`, `db`, or `/regular expression/`."""
        collections, databases, patterns = [], [], []
        for text in texts:
            if len(text) > 1 and text.startswith("/") and text.endswith("/"):
                patterns.append(_checked(text[1:-1]))
            elif "." in text.strip(".") and not text.startswith(".") and not text.endswith("."):
                collections.append(text)
            elif text and "." not in text:
                databases.append(text)
            else:
                raise SettingsError(f"{text!r} is no namespace", hint="Write db.collection, db or /pattern/.")
        return cls(tuple(collections), tuple(databases), tuple(patterns))

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return not (self.collections or self.databases or self.patterns)

    @property
    def named_databases(self) -> set[str] | None:
        """The databases that can hold a chosen collection, or None when only the server knows them."""
        if self.everything or self.patterns:
            return None
        return ({name.partition(".")[0] for name in self.collections} | set(self.databases)) - INTERNAL_DATABASES

    def contains(self, database: str, collection: str) -> bool:
        """Whether a collection is chosen."""
        if database in INTERNAL_DATABASES or collection.startswith("system.") or _is_temporary(collection):
            return False
        name = f"{database}.{collection}"
        return (
            self.everything
            or name in self.collections
            or database in self.databases
            or any(re.fullmatch(pattern, name) for pattern in self.patterns)
        )

    def contains_name(self, namespace: str) -> bool:
        """Whether the collection of a full name is chosen."""
        database, _, collection = namespace.partition(".")
        return self.contains(database, collection)

    def contains_event(self, namespace: str) -> bool:
        """Whether an event is kept: of a chosen collection, or the end of a database that may hold one of them."""
        database, dot, collection = namespace.partition(".")
        if dot:
            return self.contains(database, collection)
        return (
            self.everything
            or bool(self.patterns)
            or database in self.databases
            or any(name.startswith(f"{database}.") for name in self.collections)
        )

    def match(self) -> dict[str, Any]:
        """Make the `$match` that keeps the events of the chosen collections.

        The end of a database, which names no collection, is kept for every database that may hold one of them, and a
        rename when either of its names is chosen.
        """
        if self.everything:
            return {"$match": NOT_TEMPORARY}
        # Whole namespaces: compared field by field they cost the server 2 µs more for every event.
        exact = [dict(zip(("db", "coll"), name.split(".", 1), strict=True)) for name in self.collections]
        ends = [{"db": name} for name in sorted({field["db"] for field in exact})]
        wanted: list[dict[str, Any]] = []
        if exact:
            wanted += [{"ns": {"$in": [*exact, *ends]}}, {"to": {"$in": exact}}]
        if self.databases:
            wanted += [{f"{field}.db": {"$in": list(self.databases)}} for field in ("ns", "to")]
        for pattern in self.patterns:
            regex = f"^(?:{pattern})$"
            wanted += [
                {"$expr": {"$regexMatch": {"input": _full_name(field), "regex": regex}}} for field in ("ns", "to")
            ]
        if self.patterns:
            wanted.append({"operationType": "dropDatabase"})
        if not (self.databases or self.patterns):
            return {"$match": {"$or": wanted}}
        return {"$match": {"$and": [{"$or": wanted}, NOT_TEMPORARY]}}


EVERYTHING = Namespaces()


def _checked(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise SettingsError(f"/{pattern}/ is no regular expression: {error}", hint="Correct the pattern.") from None
    return pattern
