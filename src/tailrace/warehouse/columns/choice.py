"""Which fields of a collection's documents its mirror has: chosen columns, and excluded fields.

Chosen columns are flat: each takes the value at one path, whatever else is in the document; all other fields stay in
`_rest`. Excluded fields are nowhere in the mirror, neither in a column nor in `_rest` nor in `_bson`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tailrace import raw
from tailrace.errors import EventUnconvertible, SettingsError
from tailrace.raw import extended_json
from tailrace.warehouse.columns.encoding import Encoded, Encoder
from tailrace.warehouse.columns.evolution import META, RESERVED
from tailrace.warehouse.columns.shapes import KINDS, Columns, Shape

FieldPath: TypeAlias = tuple[str, ...]
_ID: Final = "_id"


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen of a collection; nothing is chosen where there are no paths."""

    paths: Mapping[str, FieldPath] = field(default_factory=dict)
    """Each chosen column with the path of its values."""
    excluded: tuple[FieldPath, ...] = ()

    @classmethod
    def parse(cls, columns: Mapping[str, str], excluded: str) -> tuple[Choice, Columns]:
        """Read `{total = "amount.value decimal", status = "string"}` and `card, user.phone`; gives the columns too."""
        paths: dict[str, FieldPath] = {}
        shapes: Columns = {}
        for name, text in columns.items():
            path, _, kind = text.strip().rpartition(" ")
            paths[name] = _path(path.strip() or name, name)
            shapes[name] = _shape(kind, name)
        _check_names(columns)
        fields = [part.strip() for part in excluded.split(",") if part.strip()]
        return cls(paths, tuple(_path(one, one) for one in fields)), shapes

    def __bool__(self) -> bool:
        """Whether anything differs from taking documents as they are."""
        return bool(self.paths or self.excluded)

    def text(self) -> str:
        """Give it in one line: a table keeps the choice that it was made with."""
        chosen = [f"{name}={'.'.join(path)}" for name, path in sorted(self.paths.items())]
        return ";".join([*chosen, *(f"-{'.'.join(path)}" for path in sorted(self.excluded))])

    def without_excluded(self, data: bytes) -> bytes:
        """Give a document without the excluded fields; without any of them, or unreadable, it keeps its bytes."""
        try:
            document = extended_json.decode(data) if self.excluded else {}
        except EventUnconvertible:
            return data
        return raw.encode(document) if _remove(document, self.excluded) else data

    def encode(self, document: dict[str, Any], encoder: Encoder) -> Encoded:
        """Put the values of a document into the columns, the chosen ones where there are such."""
        if not self.paths:
            return encoder.encode(document)
        paths = {_ID: (_ID,), **self.paths}
        found = {name: value for name, path in paths.items() if (value := _at(document, path)) is not None}
        made = encoder.encode(found)
        misfits = made.rest or {}
        stored = [path for name, path in paths.items() if name in made.values and name not in misfits]
        return Encoded(made.values, _without(document, stored), made.drift)


WHOLE: Final = Choice()
"""Documents as they are."""


def _without(document: Mapping[str, Any], paths: Sequence[FieldPath]) -> dict[str, Any] | None:
    """Give a copy of a document without fields, and without nulls, which no `_rest` has; None when nothing is left."""
    left: dict[str, Any] = {}
    for name, value in document.items():
        below = [path[1:] for path in paths if path[0] == name]
        if value is None or () in below:
            continue
        inner = _without(value, below) if below and type(value) is dict else value
        if inner is not None:
            left[name] = inner
    return left or None


def _check_names(columns: Mapping[str, str]) -> None:
    """Refuse names that every mirror has already, and those that most engines do not tell apart."""
    lower = [name.lower() for name in columns]
    bad = [name for name in columns if name.lower() in RESERVED or lower.count(name.lower()) > 1]
    if bad:
        hint = f"Choose other names; every mirror has {', '.join(META)}."
        raise SettingsError(f"columns cannot be called {', '.join(bad)}", hint=hint)


def _path(text: str, name: str) -> FieldPath:
    path = tuple(text.split("."))
    if not all(path):
        hint = "Write fields as names with dots between them, such as customer.name."
        raise SettingsError(f"{text!r} of {name!r} is no path of a field", hint=hint)
    return path


def _shape(text: str, name: str) -> Shape:
    kind = text.removesuffix("[]")
    if kind not in KINDS:
        hint = f"Write `path kind`, or `kind` alone; the kinds are {', '.join(KINDS)}, and kind[] for arrays."
        raise SettingsError(f"the column {name!r} has no kind {kind!r}", hint=hint)
    return [kind] if text.endswith("[]") else kind


def _at(document: Any, path: FieldPath) -> Any:
    """Give the value at a path of documents; None where there is none."""
    for step in path:
        document = document.get(step) if type(document) is dict else None
    return document


def _remove(document: dict[str, Any], paths: Iterable[FieldPath]) -> bool:
    """Take fields out of a document, in arrays of documents too; says whether there were any."""
    return sum(_removed(document, path) for path in paths) > 0


def _removed(value: Any, path: FieldPath) -> bool:
    if type(value) is list:
        return sum(_removed(element, path) for element in value) > 0
    if type(value) is not dict or path[0] not in value:
        return False
    if len(path) == 1:
        del value[path[0]]
        return True
    return _removed(value[path[0]], path[1:])
