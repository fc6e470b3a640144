"""The names of records and fields as Avro allows them, each of them once."""

from __future__ import annotations

import re

_not_in_names = re.compile(r"[^A-Za-z0-9_]")


def spelt(name: str) -> str:
    """Give a name with letters, digits and underscores alone that begins with no digit; two names may become one."""
    found = _not_in_names.sub(lambda each: f"_x{ord(each[0]):x}_", name) or "_"
    return f"_{found}" if found[0].isdigit() else found


class Names:
    """Hands out names that differ: those of the records in one schema, or of the fields in one record.

    Avro defines a name once in a schema, and `a_b` and `b` in `a` would both be `Document_a_b`. New names differ in
    more than capital letters, because Spark and SQL look fields up without them, and classes are made in files of the
    records' names. A name depends on those handed out before it alone; names of a schema that is read are kept, so that
    they stay when it grows.
    """

    def __init__(self) -> None:
        self._kept: set[str] = set()
        self._taken: set[str] = set()
        self._repeats: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        """Give a name as it is wanted, or with an underscore and a number behind it."""
        found, known = wanted, wanted.lower()
        while found.lower() in self._taken:
            number = self._repeats[known] = self._repeats.get(known, 0) + 1
            found = f"{wanted}_" if number == 1 else f"{wanted}_{number}"
        return self._add(found)

    def keep(self, given: str) -> str:
        """Give a name as it stands in a schema; another one, if the schema has it twice."""
        return self.take(given) if given in self._kept else self._add(given)

    def _add(self, name: str) -> str:
        self._kept.add(name)
        self._taken.add(name.lower())
        return name
