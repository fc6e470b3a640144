"""Updates as the oplog has them, and what a change event says about them.

Servers log an update in one of two ways: modifiers (`$v: 1`, 4.2 and 4.4: `{$set: {...}, $unset:
{...}}` with dotted paths) or a delta (`$v: 2`, 5.0 and later). A delta is a tree: `d` deleted, `u` updated
and `i` inserted fields of one document, `s<name>` the delta of a nested one; in the delta of an array
(`a: true`) `l` is its new length, `u<index>` a new element and `s<index>` the delta of an element.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from tailrace import raw
from tailrace.errors import OplogEntryInvalid
from tailrace.raw import MAX_DEPTH, Value

Path: TypeAlias = tuple[bytes | int, ...]
"""The names on the way to a value; positions in arrays are numbers."""

_DELTA_VERSION: Final = 2
_MAX_POSITION: Final = 16 * 1024 * 1024 // 3
"""No array of 16 MB has more elements: the smallest takes a type, a digit and a zero byte."""


def is_replacement(update: bytes) -> bool:
    """Tell whether `o` of an update entry is a whole document: only those have an `_id`."""
    return raw.find(update, b"_id") is not None


def update_description(update: bytes, *, disambiguate: bool = False) -> bytes:
    """Make the `updateDescription` of an update entry's `o`.

    A delta always gives `truncatedArrays`, modifiers never do. `disambiguate` adds
    `disambiguatedPaths`, which servers from 6.1 show among the expanded events.
    """
    delta = delta_of(update)
    if delta is None:
        return _describe_modifiers(update)
    description = _DeltaDescription(delta, disambiguate)
    return description.document()


def delta_of(update: bytes) -> bytes | None:
    """Give the delta of a `$v: 2` update, None for modifiers."""
    version = raw.find(update, b"$v")
    if version is None or raw.number_at(update, version[0], version[1]) != _DELTA_VERSION:
        return None
    span = raw.find(update, b"diff")
    if span is None or span[0] != raw.DOCUMENT:
        raise OplogEntryInvalid("a delta update has no `diff`", update=update)
    return update[span[1] : span[2]]


def _describe_modifiers(update: bytes) -> bytes:
    updated = _subdocument(update, b"$set")
    removed = [Value(raw.STRING, raw.string(name)) for _, name, _, _ in raw.elements(_subdocument(update, b"$unset"))]
    return raw.document(
        raw.element(raw.DOCUMENT, b"updatedFields", updated),
        raw.element(raw.ARRAY, b"removedFields", raw.array(removed)),
    )


def _subdocument(update: bytes, name: bytes) -> bytes:
    span = raw.find(update, name)
    if span is None:
        return raw.EMPTY
    if span[0] != raw.DOCUMENT:
        raise OplogEntryInvalid(f"`{name.decode()}` is not a document", update=update)
    return update[span[1] : span[2]]


class _DeltaDescription:
    """Flattens a delta into paths, in the order in which the server lists them."""

    def __init__(self, delta: bytes, disambiguate: bool) -> None:
        self.updated: list[bytes] = []
        self.removed: list[Value] = []
        self.truncated: list[Value] = []
        self.ambiguous: dict[bytes, Path] = {}
        self._disambiguate = disambiguate
        self._walk_document(delta, 0, b"", (), 0)

    def document(self) -> bytes:
        parts = [
            raw.element(raw.DOCUMENT, b"updatedFields", raw.document(*self.updated)),
            raw.element(raw.ARRAY, b"removedFields", raw.array(self.removed)),
            raw.element(raw.ARRAY, b"truncatedArrays", raw.array(self.truncated)),
        ]
        if self._disambiguate:
            paths = [raw.element(raw.ARRAY, dotted, _path_array(path)) for dotted, path in self.ambiguous.items()]
            parts.append(raw.element(raw.DOCUMENT, b"disambiguatedPaths", raw.document(*paths)))
        return raw.document(*parts)

    def _walk_document(self, diff: bytes, start: int, dots: bytes, path: Path, depth: int) -> None:
        """Collect deletes, updates and inserts of one document, then go into its nested deltas."""
        sections = _sections(diff, start, depth)
        for _, name, _, _ in _fields(diff, sections.get(b"d")):
            self.removed.append(Value(raw.STRING, raw.string(dots + name)))
            self._note(dots + name, (*path, name))
        for section in (b"u", b"i"):
            for kind, name, begin, end in _fields(diff, sections.get(section)):
                self.updated.append(raw.element(kind, dots + name, diff[begin:end]))
                self._note(dots + name, (*path, name))
        for section, begin in sections.items():
            if section[:1] == b"s":
                name = section[1:]
                self._walk(diff, begin, dots + name, (*path, name), depth + 1)

    def _walk_array(self, diff: bytes, start: int, dots: bytes, path: Path, depth: int) -> None:
        for kind, name, begin, end in raw.elements(diff, start):
            if name == b"a":
                continue
            if name == b"l":
                self._truncate(dots, kind, diff[begin:end])
                self._note(dots, path)
                continue
            mode, position = name[:1], _array_position(name)
            if mode == b"u":
                self.updated.append(raw.element(kind, dots + b".%d" % position, diff[begin:end]))
                self._note(dots + b".%d" % position, (*path, position))
            elif mode == b"s" and kind == raw.DOCUMENT:
                self._walk(diff, begin, dots + b".%d" % position, (*path, position), depth + 1)
            else:
                raise OplogEntryInvalid(f"an array delta has `{name!r}`", diff=diff)

    def _walk(self, diff: bytes, start: int, dots: bytes, path: Path, depth: int) -> None:
        if is_array_delta(diff, start):
            self._walk_array(diff, start, dots, path, depth)
        else:
            self._walk_document(diff, start, dots + b".", path, depth)

    def _truncate(self, dotted: bytes, kind: int, length: bytes) -> None:
        field = raw.element(raw.STRING, b"field", raw.string(dotted))
        size = raw.element(kind, b"newSize", length)
        self.truncated.append(Value(raw.DOCUMENT, raw.document(field, size)))

    def _note(self, dotted: bytes, path: Path) -> None:
        if self._disambiguate and any(_is_ambiguous(step) for step in path):
            self.ambiguous[dotted] = path


def is_array_delta(diff: bytes, start: int = 0) -> bool:
    """Tell an array's delta: it begins with `a: true`."""
    for kind, name, begin, _ in raw.elements(diff, start):
        return name == b"a" and kind == raw.BOOL and diff[begin] == 1
    return False


def _sections(diff: bytes, start: int, depth: int) -> dict[bytes, int]:
    """Give where each section of a document's delta begins."""
    if depth > MAX_DEPTH:
        raise OplogEntryInvalid("a delta is nested too deep", diff=diff)
    sections: dict[bytes, int] = {}
    for kind, name, begin, _ in raw.elements(diff, start):
        if kind != raw.DOCUMENT or (name[:1] != b"s" and name not in (b"d", b"u", b"i")):
            raise OplogEntryInvalid(f"a delta has `{name!r}`", diff=diff)
        sections[name] = begin
    return sections


def _fields(diff: bytes, start: int | None) -> list[raw.Element]:
    return [] if start is None else list(raw.elements(diff, start))


def _array_position(name: bytes) -> int:
    """Read the position of `u12` or `s12`; positions in arrays have no sign and no leading zero."""
    digits = name[1:]
    if not digits.isdigit() or len(digits) > 7 or int(digits) > _MAX_POSITION:
        raise OplogEntryInvalid(f"an array delta has `{name!r}`")
    return int(digits)


def _is_ambiguous(step: bytes | int) -> bool:
    return isinstance(step, bytes) and (b"." in step or step.isdigit())


def _path_array(path: Path) -> bytes:
    return raw.array(
        [
            Value(raw.INT32, raw.int32(step)) if isinstance(step, int) else Value(raw.STRING, raw.string(step))
            for step in path
        ]
    )


# --- applying a delta, for post-images


def apply_delta(document: bytes, delta: bytes) -> bytes:
    """Give the document after an update, from the document before it and the update's delta.

    Updated fields stay where they were, inserted ones go to the end: the server's own order, so that
    a post-image is the stored document byte for byte.
    """
    return _apply_to_document(document, 0, delta, 0, 0)


def _apply_to_document(doc: bytes, start: int, diff: bytes, at: int, depth: int) -> bytes:
    sections = _sections(diff, at, depth)
    deleted = {name for _, name, _, _ in _fields(diff, sections.get(b"d"))}
    updated = {e[1]: e for e in _fields(diff, sections.get(b"u"))}
    inserted = {e[1]: e for e in _fields(diff, sections.get(b"i"))}
    nested = {name[1:]: begin for name, begin in sections.items() if name[:1] == b"s"}
    kept: list[bytes] = []
    for kind, name, begin, end in raw.elements(doc, start):
        if name in deleted or name in inserted:
            continue
        if name in updated:
            kept.append(_copied(diff, updated.pop(name)))
        elif name in nested:
            kept.append(_apply_nested(doc, (kind, name, begin, end), diff, nested[name], depth))
        else:
            kept.append(raw.element(kind, name, doc[begin:end]))
    kept.extend(_copied(diff, e) for e in (*updated.values(), *inserted.values()))
    return raw.document(*kept)


def _apply_to_array(doc: bytes, start: int, diff: bytes, at: int, depth: int) -> bytes:
    elements = list(raw.elements(doc, start))
    changes: dict[int, tuple[bytes, raw.Element]] = {}
    length: int | None = None
    for kind, name, begin, end in raw.elements(diff, at):
        if name == b"l":
            number = raw.number_at(diff, kind, begin)
            length = int(number) if number is not None else None
        elif name != b"a":
            changes[_array_position(name)] = (name[:1], (kind, name, begin, end))
    if length is not None:
        elements = elements[:length]
    values: list[Value] = []
    for position in range(max([len(elements), *(p + 1 for p in changes)])):
        old = elements[position] if position < len(elements) else None
        mode, change = changes.get(position, (b"", None))
        if change is None:
            values.append(Value(old[0], doc[old[2] : old[3]]) if old else Value(raw.NULL, b""))
        elif mode == b"s" and old is not None:
            element = _apply_nested(doc, old, diff, change[2], depth)
            values.append(Value(old[0], element[len(old[1]) + 2 :]))
        else:
            values.append(Value(change[0], diff[change[2] : change[3]]))
    return raw.array(values)


def _apply_nested(doc: bytes, old: raw.Element, diff: bytes, at: int, depth: int) -> bytes:
    """Apply the delta at `at` to one element, when that still is what the delta is about."""
    kind, name, begin, end = old
    if kind == raw.ARRAY and is_array_delta(diff, at):
        return raw.element(kind, name, _apply_to_array(doc, begin, diff, at, depth + 1))
    if kind == raw.DOCUMENT and not is_array_delta(diff, at):
        return raw.element(kind, name, _apply_to_document(doc, begin, diff, at, depth + 1))
    return raw.element(kind, name, doc[begin:end])


def _copied(diff: bytes, element: raw.Element) -> bytes:
    kind, name, begin, end = element
    return raw.element(kind, name, diff[begin:end])
