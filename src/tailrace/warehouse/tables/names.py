"""What the tables of a collection are called."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

DEAD_LETTERS_TABLE: Final = ("tailrace", "dead_letters")
"""Database and table of the dead letters of a whole warehouse."""
ENDS_TABLE: Final = ("tailrace", "ends")
"""Database and table of the ends of collections: drops, renames, dropped databases."""
_HISTORY: Final = "_history"
_ORDINARY = re.compile(r"[A-Za-z0-9_]+")


class TableKind(StrEnum):
    """What a table is for."""

    HISTORY = "history"
    MIRROR = "mirror"
    DEAD_LETTERS = "dead_letters"
    ENDS = "ends"


def mirror_table(namespace: str) -> tuple[str, str]:
    """Give database and table of the current documents of `db.collection`."""
    database, collection = _parts(namespace)
    # A collection may be called like the history of another one.
    return database, f"{collection}_x" if re.search(rf"({_HISTORY}|_x)$", collection) else collection


def history_table(namespace: str) -> tuple[str, str]:
    """Give database and table of the events of `db.collection`; those of a database alone are in `_history`."""
    database, collection = _parts(namespace)
    return database, f"{collection}{_HISTORY}"


def quoted(*names: str) -> str:
    """Give a name of several parts as SQL has it."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


def _parts(namespace: str) -> tuple[str, str]:
    database, _, collection = namespace.partition(".")
    return _ordinary(database), _ordinary(collection)


def _ordinary(name: str) -> str:
    """Give a name of letters, digits and underscores; every other character becomes its number."""
    if not name or _ORDINARY.fullmatch(name):
        return name
    return re.sub(r"[^A-Za-z0-9_]", lambda found: f"_{ord(found[0]):x}_", name)
