"""Apply what an update event says to a document that is held as JSON values, or as decoded BSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def apply_update(document: dict[str, Any], update: Mapping[str, Any]) -> None:
    """Change the document, in place, as an event's `updateDescription` says: arrays cut, fields set, fields removed.

    For consumers that hold the document before the update: decoded BSON, or the JSON of any of our formats. A dot in a
    path separates names, unless `disambiguatedPaths` says which dots belong to a name.
    """
    clear = update.get("disambiguatedPaths") or {}
    for cut in update.get("truncatedArrays") or ():
        array = _find(document, _names(cut["field"], clear))
        size = cut.get("newSize", cut.get("size"))
        if isinstance(array, list):
            del array[_integer(size) :]
    for path, value in (update.get("updatedFields") or {}).items():
        _set(document, _names(path, clear), value)
    for path in update.get("removedFields") or ():
        *parents, name = _names(path, clear)
        holder = _find(document, parents)
        if isinstance(holder, dict):
            holder.pop(name, None)
        elif isinstance(holder, list) and name.isdigit() and int(name) < len(holder):
            holder[int(name)] = None  # an element that is unset leaves null behind


def _names(path: str, clear: Mapping[str, Any]) -> list[str]:
    if path not in clear:
        return path.split(".")
    return [part if isinstance(part, str) else str(_integer(part)) for part in clear[path]]


def _integer(size: Any) -> int:
    """Give a number in any spelling of Extended JSON."""
    return int(next(iter(size.values()))) if isinstance(size, Mapping) else int(size)


def _find(document: Any, names: list[str]) -> Any:
    value = document
    for name in names:
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _set(document: dict[str, Any], names: list[str], value: Any) -> None:
    *parents, last = names
    holder: Any = document
    for name in parents:
        inner = _find(holder, [name])
        if not isinstance(inner, dict | list):
            # The document is newer than the event: something else stands here now, and a later event says what.
            inner = {}
            _put(holder, name, inner)
        holder = inner
    _put(holder, last, value)


def _put(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, dict):
        holder[name] = value
    elif isinstance(holder, list) and name.isdigit():
        holder.extend([None] * (int(name) + 1 - len(holder)))
        holder[int(name)] = value
